package node

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/content"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// imageGrace is the grace of a tool that has answered with images: agents show their model the
	// image of a result, but only a file name for the image of a task.
	imageGrace = 50 * time.Second
	// learnedCalls is how many calls of a tool are remembered.
	learnedCalls = 5
	// learnedTools is how many tools of a server are remembered.
	learnedTools = 1000
	// pacedCalls is how many calls of a server are remembered, and leastPaced how many say whether it is slow.
	pacedCalls, leastPaced = 20, 5
)

// Graces learns how long the calls of each tool of a server take, and of the server as a whole.
type Graces struct {
	mu       sync.Mutex // guards the entries of tools, too
	tools    *lru.Cache[string, *toolGrace]
	outlasts [pacedCalls]bool // the call was longer than its grace, in a ring
	calls    int
}

// toolGrace has the last calls of a tool.
type toolGrace struct {
	slow   [learnedCalls]bool // took longer than shim.LearnedGrace, in a ring
	calls  int
	images bool
}

func newGraces() *Graces {
	tools, _ := lru.New[string, *toolGrace](learnedTools) // the only error is a size of 0
	return &Graces{tools: tools}
}

// GraceFor returns how long a call may take before it becomes a task.
func (s *Served) GraceFor(r shim.Request, p shim.Policy) time.Duration {
	if p.Grace == shim.GraceAuto {
		return s.Graces.graceOf(r.Name)
	}
	return p.Grace
}

// LearnPace takes an answer of the server to a call that can become a task.
func (s *Served) LearnPace(r shim.Request, p shim.Policy, took time.Duration, result json.RawMessage) {
	if r.Method != shim.CallTool {
		return
	}
	grace := p.Grace
	if grace == shim.GraceAuto {
		grace = shim.LearnedGrace
		s.Graces.LearnGrace(r.Name, took, result)
	}
	g := s.Graces
	g.mu.Lock()
	defer g.mu.Unlock()
	g.outlasts[g.calls%pacedCalls] = p.Tasks == shim.Always || p.Tasks == shim.Required || p.Tasks == shim.Auto && took > grace
	g.calls++
}

// IsSlow reports whether most of the last calls were longer than their grace.
func (g *Graces) IsSlow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	recent, slow := min(g.calls, pacedCalls), 0
	for _, outlasts := range g.outlasts[:recent] {
		if outlasts {
			slow++
		}
	}
	return recent >= leastPaced && 2*slow > recent
}

// LearnGrace takes an answer of the server.
func (g *Graces) LearnGrace(tool string, took time.Duration, result json.RawMessage) {
	images := hasImage(took, result)
	g.mu.Lock()
	defer g.mu.Unlock()
	t, known := g.tools.Get(tool)
	if !known {
		t = &toolGrace{}
		g.tools.Add(tool, t)
	}
	t.slow[t.calls%learnedCalls] = took > shim.LearnedGrace
	t.calls++
	t.images = t.images || images
}

// graceOf returns the learned grace of a tool: 0 if most of its last calls took longer than
// LearnedGrace.
func (g *Graces) graceOf(tool string) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, known := g.tools.Get(tool)
	if !known {
		return shim.LearnedGrace
	}
	if t.images {
		return imageGrace
	}
	recent, slow := min(t.calls, learnedCalls), 0
	for _, s := range t.slow[:recent] {
		if s {
			slow++
		}
	}
	if 2*slow > recent {
		return 0
	}
	return shim.LearnedGrace
}

// imageReach is how far from its beginning or its end a result names the kind of an image, if the
// result took less than imageSearch. A later one is searched from end to end, which costs little beside
// its call.
const (
	imageReach  = 4 << 10
	imageSearch = time.Second
)

// hasImage reports whether a result that took so long has an image among its content.
func hasImage(took time.Duration, result json.RawMessage) bool {
	kind := []byte(`"image"`)
	near := len(result)
	if took < imageSearch {
		near = min(near, imageReach)
	}
	if !bytes.Contains(result[:near], kind) && !bytes.Contains(result[len(result)-near:], kind) {
		return false
	}
	for _, block := range content.Blocks(result) {
		if kind, _ := jsonrpc.GetString(block, "type"); kind == "image" {
			return true
		}
	}
	return false
}
