package operator

import (
	_ "embed" // for openapi.json
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"taskgate/gateway/auth"
	"taskgate/shim"
)

//go:embed openapi.json
var openAPI []byte

// Options are what a Handler is made of.
type Options struct {
	Source Source
	// Method identifies the caller; nil lets nobody in. Ambient says that a browser adds the caller's
	// credentials to any request by itself, so a change needs the Origin of the console.
	Method  auth.Method
	Ambient bool
	// Link is the key in the address of the console that the log has, and Page the key that the console gets for it,
	// once; both are keys of Method, or "" for none.
	Link, Page string
	// Content shows arguments, results, questions, answers, and the texts of errors.
	Content bool
	// Version and Replica are those of this process.
	Version, Replica string
	// Audit has a record of each change and of each refused request; nil for none.
	Audit *slog.Logger
}

// Handler serves the interface and the console. It is safe for concurrent use.
type Handler struct {
	o      Options
	mux    *http.ServeMux
	opened atomic.Bool // the link has opened the console
}

// New returns the handler of the paths below Base, of /console/ and of /openapi.json.
func New(o Options) *Handler {
	h := &Handler{o: o, mux: http.NewServeMux()}
	for _, one := range routes {
		h.mux.HandleFunc(one.method+" "+Base+one.path, func(w http.ResponseWriter, r *http.Request) {
			if one.read == nil {
				h.streamChanges(w, r)
			} else if body, err := one.read(h, r); err != nil {
				writeFailure(w, err)
			} else {
				writeJSON(w, http.StatusOK, body)
			}
		})
	}
	h.mux.HandleFunc(Base+"/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "there is no such path")
	})
	return h
}

// Paths are the patterns that the handler serves, each with everything below it.
func Paths() []string { return []string{Base + "/", "/console/", "/openapi.json"} }

// policy is the Content-Security-Policy of every answer: resources of this origin only, without inline scripts.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP serves callers who may ask. The page itself holds no data: everybody gets it if the interface is
// on.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	switch {
	case h.o.Method == nil:
		refuseAll(w)
	case r.URL.Path == "/openapi.json":
		head.Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI)
	case isBelow(r.URL.Path, "/console/"):
		serveConsole(w, r)
	default:
		if r = h.letIn(w, r); r != nil {
			h.mux.ServeHTTP(w, r)
		}
	}
}

// refuseAll answers every request while nobody can sign in.
func refuseAll(w http.ResponseWriter) {
	writeError(w, http.StatusForbidden, "the interface for operators is off: it needs admin_auth, or an admin address on loopback")
}

// Guard returns a handler that serves callers who may change something; event is their record in the audit log.
func (h *Handler) Guard(event string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.o.Method == nil {
			refuseAll(w)
		} else if r = h.letIn(w, r); r != nil {
			h.noteEvent(r, callerOf(r), event)
			next.ServeHTTP(w, r)
		}
	})
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, Error{message})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // answers hold no HTML, and texts of servers stay readable
	_ = e.Encode(body)     // a client that has gone needs none
}

// queryError is a mistake in the query of a request.
type queryError struct{ error }

// writeFailure answers with a queryError, or with the error of a Source.
func writeFailure(w http.ResponseWriter, err error) {
	var refused *shim.ChangeError
	var busy *shim.BusyError
	switch {
	case errors.As(err, &refused):
		writeError(w, http.StatusConflict, refused.Reason)
	case errors.As(err, &busy), errors.Is(err, shim.ErrDraining), errors.Is(err, shim.ErrForbidsTask), errors.Is(err, shim.ErrRemoved):
		writeError(w, http.StatusServiceUnavailable, err.Error())
	case errors.As(err, new(queryError)):
		writeError(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, shim.ErrNotFound):
		writeError(w, http.StatusNotFound, "there is no such task")
	case errors.Is(err, shim.ErrFinal):
		writeError(w, http.StatusConflict, "the task has ended already")
	case errors.Is(err, shim.ErrCursor):
		writeError(w, http.StatusBadRequest, "cursor: not one of these filters and this order")
	default:
		writeError(w, http.StatusServiceUnavailable, "the store is unavailable: "+err.Error())
	}
}

func (h *Handler) readAccess(r *http.Request) (any, error) {
	return Access{Principal: callerOf(r).Principal.Owner(), Content: h.o.Content, Version: h.o.Version, Replica: h.o.Replica}, nil
}

func (h *Handler) readTasks(r *http.Request) (any, error) {
	q, err := queryOf(r.URL.Query(), time.Now())
	if err != nil {
		return nil, queryError{err}
	}
	found, err := h.o.Source.Tasks(r.Context(), q)
	for i := range found.Tasks {
		h.hideError(&found.Tasks[i])
	}
	return found, err
}

func (h *Handler) readTotals(r *http.Request) (any, error) {
	q, err := queryOf(r.URL.Query(), time.Now())
	if err != nil {
		return nil, queryError{err}
	}
	return h.o.Source.Totals(r.Context(), q)
}

// hideError leaves out the message of a task that an error has ended, unless content is shown: it has the server's
// words.
func (h *Handler) hideError(t *Task) {
	if !h.o.Content && (t.Status == "failed" || t.Status == "tool_error") {
		t.Message = ""
	}
}

func (h *Handler) readTask(r *http.Request) (any, error) {
	found, err := h.o.Source.Task(r.Context(), r.PathValue("id"), h.o.Content)
	h.hideError(&found.Task)
	return found, err
}

func (h *Handler) cancelTask(r *http.Request) (any, error) {
	t, err := h.o.Source.Cancel(r.Context(), r.PathValue("id"), callerOf(r).Principal.Owner())
	if err == nil {
		h.noteEvent(r, callerOf(r), "task cancelled by an operator", "upstream", t.Upstream, "task", t.ID, "owner", t.Principal)
	}
	return t, err
}

func (h *Handler) rerunTask(r *http.Request) (any, error) {
	old, made, err := h.o.Source.Rerun(r.Context(), r.PathValue("id"), callerOf(r).Principal.Owner())
	if err == nil {
		h.noteEvent(r, callerOf(r), "task run again by an operator", "upstream", old.Upstream, "task", old.ID, "as", made.ID, "owner", old.Principal)
	}
	return made, err
}

func (h *Handler) readQuestions(r *http.Request) (any, error) {
	return h.o.Source.Questions(r.Context(), h.o.Content)
}

func (h *Handler) readReplicas(r *http.Request) (any, error) { return h.o.Source.Replicas(r.Context()) }

func (h *Handler) readUpstreams(r *http.Request) (any, error) {
	return h.o.Source.Upstreams(r.Context())
}

func (h *Handler) pauseCalls(r *http.Request) (any, error) {
	p, err := h.o.Source.Pause(r.Context(), r.PathValue("upstream"), r.URL.Query().Get("tool"), callerOf(r).Principal.Owner())
	if err == nil {
		h.noteEvent(r, callerOf(r), "calls paused by an operator", "upstream", p.Upstream, "tool", p.Tool)
	}
	return p, err
}

func (h *Handler) resumeCalls(r *http.Request) (any, error) {
	p, err := h.o.Source.Resume(r.Context(), r.PathValue("upstream"), r.URL.Query().Get("tool"))
	if err == nil {
		h.noteEvent(r, callerOf(r), "calls resumed by an operator", "upstream", p.Upstream, "tool", p.Tool)
	}
	return p, err
}

func (h *Handler) readStore(r *http.Request) (any, error) { return h.o.Source.Store(r.Context()) }

func (h *Handler) readClients(r *http.Request) (any, error) { return h.o.Source.Clients(r.Context()) }

func (h *Handler) readStats(r *http.Request) (any, error) {
	return h.o.Source.Stats(r.Context(), r.URL.Query().Get("upstream"))
}
