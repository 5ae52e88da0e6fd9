package legacy

import (
	"context"
	"errors"
	"slices"

	"taskgate/shim"
)

// A legacy server may ask outside of any call (design.md 0.16). A legacy client is asked on the GET
// stream of its session, on any replica: the question has a record like any other, the state of the
// session names it, and the stream delivers it like the questions of tasks.

// mostSessionQuestions bounds the open session questions of a session.
const mostSessionQuestions = 16

// errManySessionQuestions says that the session has too many open questions.
var errManySessionQuestions = errors.New("too many questions of this session are open")

// withSessionQuestions returns the state with questions added, if there is room for them, and without
// those that are over. The old list stays as it is: others may read it.
func (st sessionState) withSessionQuestions(made, over []shim.ID) (sessionState, error) {
	ids := append(slices.Clone(st.SessionQuestions), made...)
	ids = slices.DeleteFunc(ids, func(id shim.ID) bool { return slices.Contains(over, id) })
	if len(ids) > mostSessionQuestions && len(made) > 0 {
		return st, errManySessionQuestions
	}
	st.SessionQuestions = ids
	return st, nil
}

// settleSessionQuestion forgets a question that is over.
func (s *session) settleSessionQuestion(id shim.ID) {
	if !slices.Contains(s.currentState().SessionQuestions, id) {
		return
	}
	ctx, cancel := s.table.withPatience(context.Background())
	defer cancel()
	// If this fails, the session ends, or the next stream finds that it is over.
	_ = s.updateState(ctx, func(st sessionState) (sessionState, error) { return st.withSessionQuestions(nil, []shim.ID{id}) })
}
