// Package terminal is the interface for operators in a terminal: the verbs tasks, replicas and upstreams of the
// command line. It asks a running gateway over HTTP, and prints tables, or the JSON that the gateway answered.
package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"taskgate/gateway/operator"
)

const (
	// requestTimeout bounds one request.
	requestTimeout = 30 * time.Second
	// maxRefusal bounds the text of a refusal.
	maxRefusal = 64 << 10
)

// Gateway is the address of a gateway, with a key for it.
type Gateway struct {
	// Root is the URL of its admin address, without a slash at the end.
	Root string
	key  string
}

// NewGateway takes HOST:PORT, a URL, or the address of the console as the log has it: with a token.
func NewGateway(address, key string) (*Gateway, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%s is no address of a gateway: HOST:PORT, or a URL", address)
	}
	if token, ok := strings.CutPrefix(u.Fragment, "token="); ok && key == "" {
		key = token
	}
	path := strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/console")
	return &Gateway{Root: u.Scheme + "://" + u.Host + path, key: key}, nil
}

// refusal is an answer with an error status.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string {
	if r.status == http.StatusUnauthorized {
		return "the gateway needs a key (" + r.message + "): give it with --key or " + KeyVariable + ", or give the console's address from its log as --admin"
	}
	return r.message
}

// isRefused reports whether the gateway has answered with this status.
func isRefused(err error, status int) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status == status
}

// sendRequest sends a request and decodes a successful answer; a refusal is an error.
func (g *Gateway) sendRequest(ctx context.Context, method, path string, query url.Values, into any) error {
	address := g.Root + operator.Base + "/" + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return g.ask(ctx, method, address, http.StatusOK, into)
}

// Reload has the gateway read its configuration anew. What it answers goes into the value at which into points, also
// if it refuses the file.
func (g *Gateway) Reload(ctx context.Context, into any) error {
	return g.ask(ctx, http.MethodPost, g.Root+"/reload", http.StatusUnprocessableEntity, into)
}

// ask sends a request and decodes the answer if its status is 200 or also; any other is an error.
func (g *Gateway) ask(ctx context.Context, method, address string, also int, into any) error {
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	defer stop()
	q, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return err
	}
	if g.key != "" {
		q.Header.Set("Authorization", "Bearer "+g.key)
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK || resp.StatusCode == also {
		return json.NewDecoder(resp.Body).Decode(into)
	}
	var said operator.Error
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil || json.Unmarshal(text, &said) != nil || said.Error == "" {
		said.Error = fmt.Sprintf("%s answers with %s: is that the admin address of a gateway?", g.Root, resp.Status)
	}
	return &refusal{status: resp.StatusCode, message: said.Error}
}

func (g *Gateway) readPath(ctx context.Context, path string, query url.Values, into any) error {
	return g.sendRequest(ctx, http.MethodGet, path, query, into)
}

// readTasks reads the tasks that the filters let through, at most limit of them, page by page.
func (g *Gateway) readTasks(ctx context.Context, filters url.Values, limit int) (all operator.Tasks, err error) {
	query := url.Values{}
	maps.Copy(query, filters)
	all.Tasks = []operator.Task{}
	for {
		query.Set("limit", fmt.Sprint(min(limit-len(all.Tasks), pageSize)))
		var page operator.Tasks
		if err := g.readPath(ctx, "tasks", query, &page); err != nil {
			return all, err
		}
		all.Tasks, all.Next = append(all.Tasks, page.Tasks...), page.Next
		if page.Next == "" || len(all.Tasks) >= limit {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}

// wholeID is the length of an id. A shorter text is searched for.
const wholeID = 77

// findTask returns the id that begins so: tables show the beginning.
func (g *Gateway) findTask(ctx context.Context, id string) (string, error) {
	switch {
	case id == "": // every id begins with it
		return "", errors.New("an id is empty")
	case len(id) == wholeID:
		return id, nil
	}
	found, err := g.readTasks(ctx, url.Values{"id": {id}}, 2)
	switch {
	case err != nil:
		return "", err
	case len(found.Tasks) == 0:
		return "", fmt.Errorf("no task's id begins with %s", id)
	case len(found.Tasks) > 1:
		return "", fmt.Errorf("several tasks' ids begin with %s", id)
	}
	return found.Tasks[0].ID, nil
}

// readTask reads one task, by the beginning of its id.
func (g *Gateway) readTask(ctx context.Context, id string) (t operator.TaskDetail, err error) {
	if id, err = g.findTask(ctx, id); err != nil {
		return t, err
	}
	return t, g.readPath(ctx, "tasks/"+url.PathEscape(id), nil, &t)
}

// rerunTask runs the call of a task again, and returns the new task.
func (g *Gateway) rerunTask(ctx context.Context, id string) (t operator.Task, err error) {
	return t, g.sendRequest(ctx, http.MethodPost, "tasks/"+url.PathEscape(id)+"/rerun", nil, &t)
}

// changePause pauses or resumes (verb) the calls of an upstream, or of a tool of it.
func (g *Gateway) changePause(ctx context.Context, verb, upstream, tool string) (p operator.Pause, err error) {
	query := url.Values{}
	if tool != "" {
		query.Set("tool", tool)
	}
	return p, g.sendRequest(ctx, http.MethodPost, "upstreams/"+url.PathEscape(upstream)+"/"+verb, query, &p)
}

func (g *Gateway) cancelTask(ctx context.Context, id string) error {
	var t operator.Task
	return g.sendRequest(ctx, http.MethodPost, "tasks/"+url.PathEscape(id)+"/cancel", nil, &t)
}
