package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// What gateways say of themselves. A gateway that runs is never without its tools: not
// one that has just begun, nor one that has just taken over what others ran. It may say
// that it cannot answer now, as long as things go wrong.

// codeNoMethod is how a gateway answers for a method that its server does not have.
const codeNoMethod = -32601

// untrue is an answer that says something else than what is so.
type untrue struct{ what string }

func (u *untrue) Error() string { return u.what }

// checkTools: the answer to tools/list has all tools of the upstream.
func checkTools(result json.RawMessage) error {
	var got struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(result, &got); err != nil {
		return &untrue{fmt.Sprintf("tools/list: %v in %.300q", err, result)}
	}
	listed := map[string]bool{}
	for _, t := range got.Tools {
		listed[t.Name] = true
	}
	for _, t := range tools {
		if !listed[t.name] {
			return &untrue{fmt.Sprintf("tools/list is without %s: %.300q", t.name, result)}
		}
	}
	return nil
}

// checkCapabilities: the answer to initialize or server/discover has the tools and the
// tasks among the capabilities.
func checkCapabilities(result json.RawMessage) error {
	var got struct {
		Capabilities struct {
			Tools, Tasks json.RawMessage
			Extensions   map[string]json.RawMessage
		}
	}
	err := json.Unmarshal(result, &got)
	if c := got.Capabilities; err != nil || c.Tools == nil || c.Tasks == nil && c.Extensions[mcp.ExtensionTasks] == nil {
		return &untrue{fmt.Sprintf("the capabilities are without tools or tasks: %.300q", result)}
	}
	return nil
}

// about asks with the capabilities of this client, over new connections if it is fresh.
func (m *modern) about(ctx context.Context, addr string, fresh bool) error {
	if fresh {
		m = &modern{transport: m.transport.another(), path: m.path, tasks: m.tasks, partials: m.partials, asks: m.asks, judge: m.judge}
		defer m.reconnect()
	}
	result, err := m.do(ctx, addr, mcp.MethodDiscover, map[string]any{}, nil)
	if err == nil {
		err = checkCapabilities(result)
	}
	if err != nil {
		return err
	}
	if result, err = m.do(ctx, addr, mcp.MethodToolsList, map[string]any{}, nil); err == nil {
		err = checkTools(result)
	}
	return err
}

// about asks in the session of this client, or in one that begins and ends with it.
func (l *legacy) about(ctx context.Context, addr string, fresh bool) error {
	if fresh {
		l = l.another()
		defer l.reconnect()
		result, err := l.open(ctx, addr)
		if err == nil {
			err = checkCapabilities(result)
		}
		if err != nil {
			return err
		}
		defer func() {
			if resp, err := l.request(ctx, http.MethodDelete, addr, "", nil); err == nil {
				resp.Body.Close() // the session would end by itself, too
			}
		}()
	}
	result, err := l.do(ctx, addr, mcp.MethodToolsList, map[string]any{})
	if err == nil {
		err = checkTools(result)
	}
	return err
}

// keepAsking asks one gateway again and again, until ctx ends or it was wrong.
func (c *clients) keepAsking(ctx context.Context, n *node, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	for wait(ctx, pollEvery/4) {
		// ctx ends the asking and not a question that is on its way.
		err := c.askAbout(context.Background(), n, pick(random, c.dialects), random.IntN(2) == 0)
		if errors.Is(err, errBlamed) {
			return
		}
	}
}

// errBlamed is an answer that the judge has been told of.
var errBlamed = errors.New("the answer was wrong")

// askAbout has a client ask a gateway about itself. Only one that runs from the question
// to the answer is held to what it says: another program may listen where one did.
func (c *clients) askAbout(ctx context.Context, n *node, d dialect, fresh bool) error {
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	addr, p := n.place()
	err := d.about(ctx, addr, fresh)
	who := "a client of old"
	if fresh {
		who = "a new client"
	}
	refused, isError := errors.AsType[*taskclient.Error](err)
	_, isUntrue := errors.AsType[*untrue](err)
	switch {
	case err == nil:
		c.asked.add("about the gateway: answered to " + who)
	case !isUntrue && (!isError || refused.Status != http.StatusNotFound && refused.Code != codeNoMethod):
		c.asked.add("about the gateway: " + brief(err))
	case !n.up(p):
		c.asked.add("about the gateway: it has ended meanwhile")
	case fresh && isError && refused.Status == http.StatusNotFound && c.judge.mayForgetSession(time.Time{}):
		c.asked.add("about the gateway: the store has forgotten the new session")
	default:
		c.judge.blame("%s told %s (%s): %v", p.Name, who, d.name(), err)
		return errBlamed
	}
	return err
}

// mayForgetSession: a store that fails over may lose a session that has just begun, and one of which it is known what
// it has lost, those that had begun then.
func (j *judge) mayForgetSession(begun time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.forgetful && j.calmed.IsZero() || j.rewinds && j.inGap(begun)
}

// answerTime is how long a gateway may take until it answers everybody, when nothing goes
// wrong any more.
const answerTime = 20 * time.Second

// askEverywhere has clients ask every gateway, each of which has to answer.
func (c *clients) askEverywhere(ctx context.Context, dialects []dialect) {
	ctx, stop := context.WithTimeout(ctx, answerTime)
	defer stop()
	for _, n := range c.fleet.running() {
		for i := range 2 * len(dialects) {
			d, fresh := dialects[i/2], i%2 == 0
			err := c.askAbout(ctx, n, d, fresh)
			for err != nil && !errors.Is(err, errBlamed) && wait(ctx, pollEvery) {
				err = c.askAbout(ctx, n, d, fresh)
			}
			if err != nil && !errors.Is(err, errBlamed) {
				c.judge.blame("%s does not answer a client (%s, new: %t): %v", n.name, d.name(), fresh, err)
			}
		}
	}
}
