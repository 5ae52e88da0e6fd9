package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/redistest"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// signedServer is a server that notes what it is sent, and by which token.
type signedServer struct {
	url    string
	issuer *wiretest.Issuer
	peer   *fake.Server

	mu      sync.Mutex
	names   map[string]string   // tokens, by what the test calls them
	refused map[string]bool     // the names of tokens that are not taken any more
	sent    map[string][]string // "what token", by the user whose tokens they are
	wanted  map[string][]string // likewise, what a test wants at last
	proceed chan struct{}       // closed when the tools may end
}

func newSignedServer(t *testing.T) *signedServer {
	t.Helper()
	s := &signedServer{
		issuer: wiretest.NewIssuer(t, ""), peer: fake.NewHandler(t, fake.Stateful), names: map[string]string{},
		refused: map[string]bool{}, sent: map[string][]string{}, wanted: map[string][]string{}, proceed: make(chan struct{}),
	}
	const done = `{"content":[{"type":"text","text":"done"}]}`
	hold := func(x *fake.Exchange) {
		x.Resumable(0, 0, func(send func(string)) {
			<-s.proceed
			send(x.Result(done))
		})
	}
	s.peer.Tool("auto", fake.Text("done"))
	s.peer.Tool("always", fake.Text("done"))
	s.peer.Tool("legacy", fake.Text("done"))
	s.peer.Tool("hold", hold)
	var asked atomic.Int64
	s.peer.Tool("ask", func(x *fake.Exchange) {
		x.Ask(fmt.Sprint(asked.Add(1)), "elicitation/create", `{"message":"really?","requestedSchema":{"type":"object","properties":{}}}`)
		x.Event(x.Result(done))
	})
	web := httptest.NewServer(s)
	s.url = web.URL
	t.Cleanup(func() {
		close(s.proceed)
		web.CloseClientConnections()
		s.peer.Close()
		web.Close()
	})
	return s
}

// ServeHTTP is the server.
func (s *signedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource") {
		_ = json.NewEncoder(w).Encode(map[string]any{"resource": s.url + "/mcp", "authorization_servers": []string{s.issuer.URL}})
		return
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var m struct {
		Method string
		Result json.RawMessage
	}
	_ = json.Unmarshal(body, &m)
	what := m.Method
	switch {
	case r.Header.Get("Last-Event-ID") != "":
		what = "resume"
	case m.Result != nil:
		what = "answer"
	}
	s.mu.Lock()
	user, name, _ := strings.Cut(s.names[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")], " ")
	refused := s.refused[user+" "+name]
	if slices.Contains([]string{"tools/call", "resume", "answer", "notifications/cancelled"}, what) {
		s.sent[user] = append(s.sent[user], what+" "+name)
	} else {
		refused = false // a handshake may come again, for whatever reason
	}
	s.mu.Unlock()
	if refused {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.peer.ServeHTTP(w, r)
}

// token makes a token of a user.
func (s *signedServer) token(user, name string, change map[string]any) string {
	claims := map[string]any{"aud": s.url + "/mcp", "client_id": "client", "scope": "read", "iat": time.Now().Add(-time.Minute).Unix(), "jti": user + name}
	maps.Copy(claims, change)
	token := s.issuer.Token(user, claims)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[token] = user + " " + name
	return token
}

// refuse has the server take a token no more.
func (s *signedServer) refuse(user, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[user+" "+name] = true
}

// of is what the server was sent for a user, once that is as much as is wanted or it is late.
func (s *signedServer) of(user string, n int) []string {
	deadline := time.Now().Add(patience)
	for {
		s.mu.Lock()
		sent := slices.Clone(s.sent[user])
		s.mu.Unlock()
		if len(sent) >= n || time.Now().After(deadline) {
			return sent
		}
		<-time.After(10 * time.Millisecond)
	}
}

// before runs a gateway in front of it.
func (s *signedServer) before(t *testing.T, store string, change ...func(*config.Config)) *running {
	t.Helper()
	return runServer(t, s.url+"/mcp", func(c *config.Config) {
		c.PublicURL, c.Heartbeat, c.Store, c.DrainTimeout = wiretest.PublicURL, patience, store, time.Second
		c.StoreTimeout = patience // there are many cells at once
		c.StateKeys = []config.StateKey{"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="}
		u := c.Upstreams[0]
		u.Auth = &config.UpstreamAuth{Anonymous: config.Off, Passthrough: config.NewPassthrough()}
		for name, mode := range map[string]config.TaskMode{"always": config.TasksAlways, "hold": config.TasksAlways, "ask": config.TasksAlways, "auto": config.TasksAuto, "legacy": config.TasksAuto} {
			p := u.Defaults
			p.Tasks = mode
			u.Tools = append(u.Tools, config.Rule{Match: config.ByName(name), Tool: p})
		}
		for _, one := range change {
			one(c)
		}
	})
}

// statesOfOwn are the states that the own token of a call may be in.
var statesOfOwn = []string{"good", "expired", "refused"}

// otherTokens are the other tokens of its user, and whether each may stand in, is of the same owner, and is refused.
var otherTokens = map[string]struct {
	claims               func(s *signedServer) map[string]any
	may, shared, refused bool
}{
	"newer":                 {func(*signedServer) map[string]any { return map[string]any{} }, true, true, false},
	"more scopes":           {func(*signedServer) map[string]any { return map[string]any{"scope": "write read"} }, true, true, false},
	"fewer scopes":          {func(*signedServer) map[string]any { return map[string]any{"scope": ""} }, false, true, false},
	"older":                 {func(*signedServer) map[string]any { return map[string]any{"iat": time.Now().Add(-time.Hour).Unix()} }, false, true, false},
	"other audience":        {func(*signedServer) map[string]any { return map[string]any{"aud": wiretest.PublicURL + "/mcp"} }, false, true, false},
	"other client":          {func(*signedServer) map[string]any { return map[string]any{"client_id": "another"} }, false, false, false},
	"other user":            {nil, false, false, false},
	"newer, refused":        {func(*signedServer) map[string]any { return map[string]any{} }, true, true, true},
	"fewer scopes, refused": {func(*signedServer) map[string]any { return map[string]any{"scope": ""} }, false, true, true},
}

// cell is one case of the matrix: a user with two tokens.
type cell struct {
	*signedServer
	user, own, other string
	state            string
	may, shared      bool
	otherIsRefused   bool
	life             time.Duration // of the own token, where it expires
	until            time.Time
}

// cell makes a user of its own for a case.
func (s *signedServer) cell(kind, state, name string) *cell {
	other := otherTokens[name]
	c := &cell{signedServer: s, user: strings.ReplaceAll(fmt.Sprint(kind, "/", state, "/", name), " ", "-"), state: state, may: other.may, shared: other.shared, otherIsRefused: other.refused}
	c.issueOwn(6 * time.Second)
	if other.claims == nil {
		c.other = s.token(c.user+"-else", "other", map[string]any{"iat": time.Now().Unix()})
		return c
	}
	claims := map[string]any{"iat": time.Now().Unix()}
	maps.Copy(claims, other.claims(s))
	c.other = s.token(c.user, "other", claims)
	if c.otherIsRefused {
		s.refuse(c.user, "other")
	}
	return c
}

// issueOwn makes the own token, good for so long where it is to expire.
func (c *cell) issueOwn(life time.Duration) {
	claims := map[string]any{}
	if c.state == "expired" {
		c.life, c.until = life, time.Now().Add(life).Truncate(time.Second)
		claims["exp"] = c.until.Add(-30 * time.Second).Unix() // clocks may be so far apart
	}
	c.own = c.token(c.user, "own", claims)
}

// isLate reports whether the own token has expired before it was to. It has another one then, which is good for
// longer.
func (c *cell) isLate() bool {
	late := c.state == "expired" && time.Now().After(c.until) && c.life < patience
	if late {
		c.issueOwn(2 * c.life)
	}
	return late
}

// age brings the own token into its state.
func (c *cell) age() {
	switch c.state {
	case "expired":
		<-time.After(time.Until(c.until) + 100*time.Millisecond)
	case "refused":
		c.refuse(c.user, "own")
	}
}

// want wants that the server was sent this for the user, and is sent nothing more until the next want.
func (c *cell) want(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	c.wanted[c.user] = want
	c.mu.Unlock()
	if got := c.of(c.user, len(want)); !slices.Equal(got, want) {
		t.Errorf("the server was sent %q, want %q", got, want)
	}
}

// isQuiet fails unless the server was sent what was wanted last for each user, once it is sent nothing any more.
func (s *signedServer) isQuiet(t *testing.T) {
	t.Helper()
	count := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, sent := range s.sent {
			n += len(sent)
		}
		return n
	}
	for before := -1; before != count(); <-time.After(2 * time.Second) {
		before = count()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for user, sent := range s.sent {
		if !slices.Equal(sent, s.wanted[user]) {
			t.Errorf("at last the server was sent %q for %s, want %q", sent, user, s.wanted[user])
		}
	}
}

// eachCell runs a test for each state of the own token and each other one, side by side.
func eachCell(t *testing.T, all *sync.WaitGroup, s *signedServer, kind string, run func(t *testing.T, c *cell)) {
	for _, state := range statesOfOwn {
		for name := range otherTokens {
			all.Go(func() {
				t.Run(strings.Join([]string{kind, state, name}, ", "), func(t *testing.T) { run(t, s.cell(kind, state, name)) })
			})
		}
	}
}

// TestWhichTokenGoesOut: the first request of a call goes out with the token that it came with, and an
// answer or a cancellation with that of the request which brings it, whatever other tokens their user has
// shown, and whichever replica that request comes to. If the server refuses that, no other one goes out. Nothing goes out
// for whoever is not the owner.
func TestWhichTokenGoesOut(t *testing.T) {
	s, redis := newSignedServer(t), redistest.Start(t)
	g, first, second := s.before(t, config.StoreEmbedded), s.before(t, redis.URL()), s.before(t, redis.URL())
	t.Run("cells", func(t *testing.T) {
		var all sync.WaitGroup
		defer all.Wait()
		for _, kind := range []string{"auto", "always"} {
			eachCell(t, &all, s, kind, func(t *testing.T, c *cell) {
				g.modern(c.other, "tools/list", "")
				c.age()
				g.modern(c.own, "tools/call", `"name":"`+kind+`","arguments":{},`)
				g.modern(c.other, "tools/list", "")
				switch c.state {
				case "expired": // the gateway knows that by itself
					c.want(t)
				case "refused": // again, now that the gateway knows
					g.modern(c.own, "tools/call", `"name":"`+kind+`","arguments":{},`)
					c.want(t, "tools/call own", "tools/call own")
				default:
					c.want(t, "tools/call own")
				}
			})
		}
		eachCell(t, &all, s, "legacy", func(t *testing.T, c *cell) {
			_, _, h := g.request("/mcp", c.own, wiretest.InitializeBody)
			for h.Get("Mcp-Session-Id") == "" && c.isLate() {
				_, _, h = g.request("/mcp", c.own, wiretest.InitializeBody)
			}
			session := []string{"Mcp-Session-Id", h.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25"}
			g.request("/mcp", c.own, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session...)
			g.modern(c.other, "tools/list", "")
			c.age()
			status, text, _ := g.request("/mcp", c.own, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"legacy","arguments":{},"task":{}}}`, session...)
			t.Logf("the call: %d %s; session %q", status, text, h.Get("Mcp-Session-Id"))
			g.modern(c.other, "tools/list", "")
			if c.state == "expired" {
				c.want(t)
				return
			}
			c.want(t, "tools/call own")
		})
		for place, at := range map[string]struct{ runs, hears *running }{"": {g, g}, " elsewhere": {first, second}} {
			eachCell(t, &all, s, "answer"+place, func(t *testing.T, c *cell) {
				id := at.runs.answered(t, c, at.hears)
				if c.otherIsRefused && c.state == "good" {
					at.hears.says(c.own, id, "the server refused the answer to its question")
				}
			})
			eachCell(t, &all, s, "cancel"+place, func(t *testing.T, c *cell) {
				id := at.runs.begin(t, c, "hold")
				c.age()
				at.hears.modern(c.other, "tasks/cancel", `"taskId":"`+id+`",`)
				c.wantBrought(t, "notifications/cancelled other")
			})
		}
	})
	s.isQuiet(t)
}

// answered has a task with the own token ask something, and answers it with the other one at a replica.
func (r *running) answered(t *testing.T, c *cell, at *running) (id string) {
	t.Helper()
	id = r.begin(t, c, "ask")
	c.age()
	key, deadline := "", time.Now().Add(patience)
	reader := c.other
	if !c.shared {
		if reader = c.own; c.state == "expired" {
			return id // nobody can say what is asked
		}
	}
	for key == "" && time.Now().Before(deadline) {
		_, text := at.modern(reader, "tasks/get", `"taskId":"`+id+`",`)
		var task struct {
			Result struct{ InputRequests map[string]any }
		}
		_ = json.Unmarshal([]byte(text), &task)
		for name := range task.Result.InputRequests {
			key = name
		}
		<-time.After(50 * time.Millisecond)
	}
	if key == "" {
		t.Fatal("nothing is asked")
	}
	at.modern(c.other, "tasks/update", `"taskId":"`+id+`","inputResponses":{"`+key+`":{"action":"accept","content":{}}},`)
	c.wantBrought(t, "answer other")
	return id
}

// wantBrought wants that the other token has brought something if it is of the same owner, and nothing else.
func (c *cell) wantBrought(t *testing.T, what string) {
	t.Helper()
	if !c.shared {
		c.want(t, "tools/call own")
		return
	}
	c.want(t, "tools/call own", what)
}

// begin makes a task with the own token, and returns once the server has its call.
func (r *running) begin(t *testing.T, c *cell, tool string) (id string) {
	t.Helper()
	status, text := r.modern(c.own, "tools/call", `"name":"`+tool+`","arguments":{},`)
	for status == http.StatusUnauthorized && c.isLate() {
		status, text = r.modern(c.own, "tools/call", `"name":"`+tool+`","arguments":{},`)
	}
	var task struct{ Result struct{ TaskID string } }
	if err := json.Unmarshal([]byte(text), &task); err != nil || task.Result.TaskID == "" {
		t.Fatalf("no task: %d %s", status, text)
	}
	c.want(t, "tools/call own")
	return task.Result.TaskID
}

// says waits until a task says something.
func (r *running) says(token, id, want string) {
	r.t.Helper()
	r.until(want, func() bool {
		_, text := r.modern(token, "tasks/get", `"taskId":"`+id+`",`)
		return strings.Contains(text, want)
	})
}

// TestWhichTokenGoesOnWithACall: a call that another replica has taken over goes on with the token that it
// came with, once its owner shows that there, and after that has expired or is refused with another one
// only under the rules. The task says meanwhile that it waits.
func TestWhichTokenGoesOnWithACall(t *testing.T) {
	s, redis := newSignedServer(t), redistest.Start(t)
	first, second := s.before(t, redis.URL()), s.before(t, redis.URL())
	type taken struct {
		*cell
		name, id string
	}
	var all []taken
	for _, state := range statesOfOwn {
		for name := range otherTokens {
			all = append(all, taken{cell: s.cell("adopted", state, name), name: state + ", " + name})
		}
	}
	for i := range all {
		all[i].id = first.begin(t, all[i].cell, "hold")
	}
	first.ends()
	t.Run("adopted", func(t *testing.T) {
		var cells sync.WaitGroup
		for _, c := range all {
			cells.Go(func() {
				t.Run(c.name, func(t *testing.T) {
					c.age()
					if c.state != "expired" {
						second.modern(c.own, "tools/list", "")
						c.want(t, "tools/call own", "resume own")
					}
					second.modern(c.other, "tools/list", "")
					want := []string{"tools/call own"}
					if c.state != "expired" {
						want = append(want, "resume own")
					}
					if c.state != "good" && c.may {
						c.want(t, append(want, "resume other")...)
						return
					}
					c.want(t, want...)
					if c.state == "good" || !c.shared {
						return
					}
					second.says(c.other, c.id, "waits for its owner")
				})
			})
		}
		cells.Wait()
	})
	s.isQuiet(t)
}

// TestRefusedAtEachReplica: a token that the server has refused at one replica reads nothing at another one, which
// has never sent it to the server, until the server takes it again.
func TestRefusedAtEachReplica(t *testing.T) {
	s, redis := newSignedServer(t), redistest.Start(t)
	first, second, third := s.before(t, redis.URL()), s.before(t, redis.URL()), s.before(t, redis.URL())
	c := &cell{signedServer: s, user: "alice", state: "refused"}
	c.issueOwn(time.Hour)
	id := first.begin(t, c, "hold")
	c.age()
	if status, text := first.modern(c.own, "tools/call", `"name":"auto",`); status != http.StatusUnauthorized {
		t.Fatalf("the refused call: %d %s", status, text)
	}
	// A store that is slow to say so is asked again.
	shimtest.Eventually(t, func() bool {
		status, _ := second.modern(c.own, "tasks/get", `"taskId":"`+id+`",`)
		return status == http.StatusUnauthorized
	})
	s.mu.Lock()
	clear(s.refused)
	s.mu.Unlock()
	if status, text := first.modern(c.own, "tools/call", `"name":"auto",`); status != http.StatusOK {
		t.Fatalf("the call that is taken: %d %s", status, text)
	}
	third.says(c.own, id, `"working"`)
}

// opaque makes a token of a user that says nothing; introspection knows it.
func (s *signedServer) opaque(user, name string) string {
	token := "opaque-" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[token] = user + " " + name
	return token
}

// introspect is the endpoint of the authorization server: a token is active until the server refuses it.
func (s *signedServer) introspect(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	name, known := s.names[r.FormValue("token")]
	active := known && !s.refused[name]
	s.mu.Unlock()
	user, _, _ := strings.Cut(name, " ")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"active": active, "iss": "https://login.example", "sub": user, "client_id": "client", "aud": s.url + "/mcp", "scope": "read", "iat": time.Now().Unix(),
	})
}

// TestRefreshedTokenBringsAnAnswer: a client whose tokens are opaque refreshes its token while a task of it runs, and
// answers and cancels at the other replica. The server gets the new token. Redis keeps neither token, sealed or not,
// and no log has one.
func TestRefreshedTokenBringsAnAnswer(t *testing.T) {
	s, redis := newSignedServer(t), redistest.Start(t)
	redis.Do("config", "set", "rdbcompression", "no") // so that a dump is plain
	known := httptest.NewServer(http.HandlerFunc(s.introspect))
	t.Cleanup(known.Close)
	opaque := func(c *config.Config) {
		c.Log.Level = "debug"
		c.Upstreams[0].Auth.Passthrough.Introspection = &config.Introspection{URL: known.URL, ClientID: "gateway", ClientSecret: "secret"}
	}
	first, second := s.before(t, redis.URL(), opaque), s.before(t, redis.URL(), opaque)
	cellOf := func(user string) *cell {
		return &cell{signedServer: s, user: user, state: "refused", shared: true, own: s.opaque(user, "own"), other: s.opaque(user, "other")}
	}
	answers, cancels := cellOf("answers"), cellOf("cancels")

	id := first.answered(t, answers, second)
	second.says(answers.other, id, `"completed"`)
	id = first.begin(t, cancels, "hold")
	cancels.age()
	second.modern(cancels.other, "tasks/cancel", `"taskId":"`+id+`",`)
	cancels.wantBrought(t, "notifications/cancelled other")
	s.isQuiet(t)

	kept := ""
	for _, key := range redis.Keys("*") {
		kept += fmt.Sprint(key, redis.Do("dump", key))
	}
	for _, r := range []*running{first, second} {
		r.ends()
		kept += r.log.String()
	}
	if !strings.Contains(kept, id) {
		t.Error("nothing is kept of the task")
	}
	for _, secret := range []string{"opaque-", "tg1."} {
		if at := strings.Index(kept, secret); at >= 0 {
			t.Errorf("%q is kept: %.300s", secret, kept[max(0, at-100):])
		}
	}
}
