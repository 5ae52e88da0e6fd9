package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

// format is the format of records and of session states, which have it in a field. A new field keeps the
// format: older versions ignore it and leave it as it is. The format rises with something that only newer
// versions can read; records with a higher format are left to the replicas of those versions. A record
// without a format is older than this field.
const format = 1

var errNewer = errors.New("a newer version has stored it")

// checkFormat returns an error if a format is newer than this version reads.
func checkFormat(stored string) error {
	if n, err := strconv.Atoi(cmp.Or(stored, "0")); err != nil || n > format {
		return fmt.Errorf("%w, in format %s", errNewer, stored)
	}
	return nil
}

// The fields of a task's hash. A field that is empty is absent.
const (
	fieldFormat     = "format"
	fieldOp         = "op"
	fieldOwner      = "owner"
	fieldList       = "list"
	fieldUpstream   = "upstream"
	fieldOrigin     = "origin"
	fieldVisible    = "visible"
	fieldStatus     = "status"
	fieldMessage    = "message"
	fieldVersion    = "version"
	fieldCreated    = "created"
	fieldUpdated    = "updated"
	fieldTTL        = "ttl"
	fieldRetain     = "retain"
	fieldPoll       = "poll"
	fieldLease      = "lease"
	fieldMethod     = "method"
	fieldTool       = "tool"
	fieldTrace      = "trace"
	fieldProgress   = "progress"
	fieldBatches    = "batches"
	fieldQuestions  = "questions"
	fieldOutcome    = "outcome" // the kind of outcome, see below
	fieldSize       = "size"    // of the body, in bytes
	fieldTokenAt    = "token"
	fieldBody       = "body"
	fieldCall       = "call"
	fieldCheckpoint = "checkpoint"
	fieldArguments  = "arguments" // for operators
	fieldRerunOf    = "rerun_of"
	fieldRerunAs    = "rerun_as"
	fieldUnknown    = "unknown" // of the outcome
	fieldEvents     = "events"  // the timeline
	fieldLead       = "lead"    // ms from the sending of the call to the creation
	fieldKept       = "kept"    // until when, in ms, though its client gave up
)

// The field outcome says which of these the field body is.
const (
	outcomeResult    = "result"
	outcomeToolError = "tool_error"
	outcomeError     = "error"
)

// summaryFields are the fields of a summary, and of each reply of a script.
var summaryFields = []string{
	fieldFormat, fieldOp, fieldOwner, fieldList, fieldUpstream, fieldOrigin, fieldVisible, fieldStatus, fieldMessage,
	fieldVersion, fieldCreated, fieldUpdated, fieldTTL, fieldRetain, fieldPoll, fieldLease, fieldMethod,
	fieldTool, fieldTrace, fieldBatches, fieldProgress, fieldOutcome, fieldSize, fieldUnknown, fieldLead, fieldKept, fieldTokenAt, fieldQuestions,
}

var partFields = map[shim.Part][]string{
	shim.Summary:      summaryFields,
	shim.WithOutcome:  summaryAnd(fieldBody),
	shim.WithRun:      summaryAnd(fieldCall, fieldCheckpoint, fieldArguments, fieldRerunOf),
	shim.WithTimeline: summaryAnd(fieldEvents, fieldRerunOf, fieldRerunAs),
	shim.WithAll:      summaryAnd(fieldEvents, fieldRerunOf, fieldRerunAs, fieldCall, fieldArguments, fieldBody),
}

func summaryAnd(more ...string) []string { return slices.Concat(summaryFields, more) }

// row reads values in the order of partFields.
type row struct {
	values []string
	at     int
	err    error
}

func (r *row) text() string {
	r.at++
	return r.values[r.at-1]
}

func (r *row) bytes() json.RawMessage {
	if s := r.text(); s != "" {
		return json.RawMessage(s)
	}
	return nil
}

func (r *row) number() int64 {
	s := r.text()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && r.err == nil {
		r.err = err
	}
	return n
}

func (r *row) time() time.Time { return time.UnixMilli(r.number()).UTC() }

func (r *row) duration() time.Duration { return time.Duration(r.number()) * time.Millisecond }

// decode makes a task of its fields. Every task has a status.
func decode(id shim.ID, part shim.Part, values []string) (shim.Task, error) {
	if len(values) != len(partFields[part]) {
		return shim.Task{}, &unreadableError{id, fmt.Errorf("%d fields", len(values))}
	}
	r := &row{values: values}
	if err := checkFormat(r.text()); err != nil {
		return shim.Task{}, &unreadableError{id, err}
	}
	t := shim.Task{
		ID: id, Op: r.text(), Owner: r.text(), ListKey: r.text(), Upstream: r.text(), Origin: r.text(),
		Visible: r.text() == "1", Status: shim.Status(r.text()), StatusMessage: r.text(),
		Version: r.number(), CreatedAt: r.time(), UpdatedAt: r.time(), TTL: r.duration(),
		Retain: r.duration(), PollInterval: r.duration(),
	}
	if t.Status == "" {
		return shim.Task{}, shim.ErrNotFound
	}
	t.Lease = r.lease()
	t.Method, t.Tool, t.Trace = r.text(), r.text(), r.trace()
	t.Position = shim.Position(r.number())
	t.Progress = r.progress()
	kind := r.text()
	t.ToolError = kind == outcomeToolError
	t.OutcomeSize = r.number()
	t.Unknown = r.text() == "1"
	t.Lead = r.duration()
	if kept := r.number(); kept > 0 {
		t.KeptUntil = time.UnixMilli(kept).UTC()
	}
	t.TokenAt, t.Questions = r.number(), r.questions("")
	switch part {
	case shim.WithOutcome:
		t.Outcome = r.outcome(kind)
	case shim.WithRun:
		t.Call, t.Checkpoint, t.Arguments = r.bytes(), r.bytes(), r.bytes()
		t.RerunOf = shim.ID(r.text())
	case shim.WithTimeline:
		t.Timeline, t.RerunOf, t.RerunAs = r.timeline(), shim.ID(r.text()), shim.ID(r.text())
	case shim.WithAll:
		t.Timeline, t.RerunOf, t.RerunAs = r.timeline(), shim.ID(r.text()), shim.ID(r.text())
		t.Call, t.Arguments, t.Outcome = r.bytes(), r.bytes(), r.outcome(kind)
	}
	if r.err != nil {
		return shim.Task{}, &unreadableError{id, r.err}
	}
	return t, nil
}

// unreadableError says that a record exists and cannot be read. A reader of many records leaves it out with
// Store.skipUnreadable.
type unreadableError struct {
	id  shim.ID
	err error
}

func (e *unreadableError) Error() string { return fmt.Sprintf("task %s: %v", e.id, e.err) }
func (e *unreadableError) Unwrap() error { return e.err }

// recordError is the error of a command that reads a record. A key of another type than a hash is an
// unreadable record.
func recordError(id shim.ID, err error) error {
	if hasPrefix(err, wrongType) {
		return &unreadableError{id, err}
	}
	return err
}

// maxSkipped bounds the ids that Store.skipUnreadable remembers, and so the log lines about them.
const maxSkipped = 1000

// skipUnreadable reports whether err is about an unreadable record, which a reader skips. It counts such a
// record each time, and logs it once.
func (s *Store) skipUnreadable(ctx context.Context, err error) bool {
	var unreadable *unreadableError
	if !errors.As(err, &unreadable) {
		return false
	}
	s.opts.Metrics.SkippedRecord(ctx)
	s.skippedMu.Lock()
	_, known := s.skipped[unreadable.id]
	if known = known || len(s.skipped) >= maxSkipped; !known {
		s.skipped[unreadable.id] = struct{}{}
	}
	s.skippedMu.Unlock()
	if !known {
		s.log.Error("a record in the store cannot be read, and is left out of lists and adoptions", "task", unreadable.id, "err", unreadable.err)
	}
	return true
}

func (r *row) lease() shim.Lease {
	l, err := shim.ParseLease(r.text())
	if err != nil && r.err == nil {
		r.err = err
	}
	return l
}

func (r *row) outcome(kind string) *shim.Outcome {
	body := r.text()
	switch kind {
	case outcomeResult, outcomeToolError:
		return &shim.Outcome{Result: json.RawMessage(body), IsError: kind == outcomeToolError}
	case outcomeError:
		return &shim.Outcome{Error: json.RawMessage(body)}
	}
	return nil
}

// timeline reads what note in lua/common.lua wrote.
func (r *row) timeline() (all []shim.Moment) {
	for line := range strings.Lines(r.text()) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		at, detail, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil && r.err == nil {
			r.err = err
		}
		all = append(all, shim.Moment{Kind: shim.Kind(kind), At: time.UnixMilli(n).UTC(), Detail: detail})
	}
	return all
}

// maxDetail bounds the detail of a moment, in bytes.
const maxDetail = 256

// addMoments adds moments as a list.
func addMoments(a *argv, moments []shim.Moment) {
	a.list = append(a.list, 3*len(moments))
	for _, m := range moments {
		detail := strings.Join(strings.Fields(m.Detail), " ") // on one line
		a.add(string(m.Kind), millis(max(0, m.Ago)), strings.ToValidUTF8(detail[:min(len(detail), maxDetail)], ""))
	}
}

// progress reads what encodeProgress wrote.
func (r *row) progress() (p shim.TaskProgress) {
	token, params, _ := strings.Cut(r.text(), "\n")
	if token != "" {
		p.Token = json.RawMessage(token)
	}
	if params != "" {
		p.Params = json.RawMessage(params)
	}
	return p
}

// encodeProgress puts the token on a line of its own: the JSON of a string or a number is one line.
func encodeProgress(p shim.TaskProgress) string {
	if p.Token == nil {
		return ""
	}
	return string(p.Token) + "\n" + string(p.Params)
}

// setOutcome is the reverse of row.outcome.
func (f *fields) setOutcome(o *shim.Outcome) {
	if o == nil {
		return
	}
	kind, body := outcomeResult, []byte(o.Result)
	switch {
	case o.Error != nil:
		kind, body = outcomeError, []byte(o.Error)
	case o.IsError:
		kind = outcomeToolError
	}
	f.list = append(f.list, fieldOutcome, kind, fieldSize, strconv.Itoa(len(body)), fieldBody, body)
	if o.Unknown {
		f.list = append(f.list, fieldUnknown, "1")
	}
}

// encode returns the fields of a new task, except those that create.lua sets.
func encode(t shim.Task) fields {
	var f fields
	f.set(fieldFormat, strconv.Itoa(format))
	f.set(fieldOwner, t.Owner)
	f.set(fieldList, t.ListKey)
	f.set(fieldUpstream, t.Upstream)
	f.set(fieldOrigin, t.Origin)
	f.set(fieldStatus, string(t.Status))
	f.set(fieldMessage, t.StatusMessage)
	f.set(fieldPoll, millis(t.PollInterval))
	f.set(fieldLease, t.Lease.String())
	if t.Lead > 0 {
		f.set(fieldLead, millis(t.Lead))
	}
	if !t.KeptUntil.IsZero() {
		f.set(fieldKept, spellTime(t.KeptUntil))
	}
	f.set(fieldMethod, t.Method)
	f.set(fieldTool, t.Tool)
	f.set(fieldTrace, encodeTrace(t.Trace))
	f.set(fieldProgress, encodeProgress(t.Progress))
	f.set(fieldQuestions, encodeQuestions(t.Questions))
	f.setBytes(fieldCall, t.Call)
	f.setBytes(fieldCheckpoint, t.Checkpoint)
	f.setBytes(fieldArguments, t.Arguments)
	f.set(fieldRerunOf, string(t.RerunOf))
	f.setOutcome(t.Outcome)
	return f
}

// ms is a duration in whole milliseconds, rounded up, so that data is kept for at least as long as was asked.
func ms(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// spellTime spells a time in ms; "" for none.
func spellTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixMilli(), 10)
}

// millis spells a duration.
func millis(d time.Duration) string { return strconv.FormatInt(ms(d), 10) }

// hmget is an HMGET of a part of a task. The field names are boxed once, because every poll is this command.
func (s *Store) hmget(ctx context.Context, id shim.ID, part shim.Part) *redis.StringSliceCmd {
	line := make([]any, len(hmgetLines[part]))
	copy(line, hmgetLines[part])
	line[1] = s.keys.task(id)
	return redis.NewStringSliceCmd(ctx, line...)
}

// hmgetLines are these commands, with a place for the key.
var hmgetLines = func() map[shim.Part][]any {
	lines := map[shim.Part][]any{}
	for part, names := range partFields {
		lines[part] = []any{"hmget", nil}
		for _, n := range names {
			lines[part] = append(lines[part], n)
		}
	}
	return lines
}()

// Get implements shim.Store.
func (s *Store) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	if _, err := shim.ParseID(string(id)); err != nil {
		return shim.Task{}, err
	}
	var task shim.Task
	err := s.doRepeated(ctx, "get", func(ctx context.Context) error {
		cmd := s.hmget(ctx, id, part)
		if err := s.reads.Process(ctx, cmd); err != nil {
			return err
		}
		var err error
		task, err = decode(id, part, cmd.Val())
		return err
	})
	return task, err
}

// Batches implements shim.Store: it reads a list from an index on. If the list is empty, it checks afterwards
// whether the task exists, so that a task that expires meanwhile is reported as shim.ErrNotFound. The list of
// a task expires with it.
func (s *Store) Batches(ctx context.Context, id shim.ID, skip int64) ([]json.RawMessage, error) {
	if _, err := shim.ParseID(string(id)); err != nil {
		return nil, err
	}
	var out []json.RawMessage
	err := s.doRepeated(ctx, "read", func(ctx context.Context) error {
		list := redis.NewStringSliceCmd(ctx, "lrange", s.keys.batches(id), strconv.FormatInt(max(skip, 0), 10), "-1")
		if err := s.reads.Process(ctx, list); err != nil {
			return err
		}
		if len(list.Val()) == 0 {
			n, err := s.client.Exists(ctx, s.keys.task(id)).Result()
			if err != nil {
				return err
			}
			if n == 0 {
				return shim.ErrNotFound
			}
		}
		out = make([]json.RawMessage, len(list.Val()))
		for i, v := range list.Val() {
			out[i] = json.RawMessage(v)
		}
		return nil
	})
	return out, err
}
