package check

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	networking "k8s.io/api/networking/v1"

	"taskgate/internal/mcp"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
)

const balancersDir = "../../examples/balancers"

// replicas stand in for two replicas that differ in nothing: they say what they have got, and die when they are told to.
type replicas struct {
	hosts, bodies sync.Map     // what came as Host, and how long each body was
	answered      sync.Map     // the addresses of those that have answered
	requests      atomic.Int64 // of clients
	deaths        atomic.Int64 // so many more requests are read, and then their connection is cut
	more          chan struct{}
}

// ServeHTTP answers a probe, dies, or tells a story in two events, the second when it may.
func (r *replicas) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/readyz" {
		return
	}
	body, _ := io.ReadAll(req.Body)
	r.requests.Add(1)
	r.hosts.Store(req.Host, true)
	r.bodies.Store(len(body), true)
	if r.deaths.Add(-1) >= 0 {
		panic(http.ErrAbortHandler)
	}
	r.answered.Store(req.Context().Value(http.LocalAddrContextKey).(net.Addr).String(), true)
	if req.URL.Path != "/events" {
		fmt.Fprint(w, "answer")
		return
	}
	w.Header().Set("Content-Type", mcp.TypeSSE)
	fmt.Fprint(w, "data: first\n\n")
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.more:
		fmt.Fprint(w, "data: second\n\n")
	case <-req.Context().Done():
	}
}

// post sends a message that asks for a method, as a client of 2026-07-28 does, and returns the status of the answer.
func post(t *testing.T, url, method string, size int) int {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"fill":%q}}`, method, strings.Repeat("x", size))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "mcp.example.com:8443"
	req.Header.Set("Content-Type", mcp.TypeJSON)
	req.Header.Set(mcp.HeaderMethod, method)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0 // the balancer has cut the connection
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestBalancers: through each balancer events come when they are sent, replicas learn by which name they were
// called, a body may be as long as theirs, and what a dead replica has read is sent again if it only reads.
func TestBalancers(t *testing.T) {
	t.Parallel()
	for name, balancer := range map[string]struct {
		files   []string // the first is the configuration
		command []string
		edit    func(t *testing.T, text, addr string) string // what differs here
	}{
		"nginx":   {[]string{balancersDir + "/nginx.conf"}, []string{"nginx", "-p", ".", "-e", "stderr", "-g", "daemon off; pid nginx.pid; error_log stderr;", "-c", "nginx.conf"}, inFolder},
		"caddy":   {[]string{balancersDir + "/Caddyfile"}, []string{"caddy", "run", "--adapter", "caddyfile", "--config", "Caddyfile"}, forCaddy},
		"traefik": {[]string{balancersDir + "/traefik.yaml", balancersDir + "/traefik-routes.yaml"}, []string{"traefik", "--configFile=traefik.yaml"}, nil},
		"haproxy": {[]string{composeDir + "/haproxy.cfg"}, []string{"haproxy", "-db", "-f", "haproxy.cfg"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(balancer.command[0]); err != nil {
				if name == "traefik" {
					t.Skip("no package of Debian has it: ", err)
				}
				absent(t, err.Error())
			}
			r := &replicas{more: make(chan struct{})}
			at := r.listen(t)
			addr, dir := at("balancer:8080"), t.TempDir()
			for _, file := range balancer.files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				moved := at(string(text))
				if balancer.edit != nil {
					moved = balancer.edit(t, moved, addr)
				}
				if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(moved), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			programtest.Start(t, proc.Command{Name: name, Path: balancer.command[0], Args: balancer.command[1:], Dir: dir, Env: []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}}, 0, addr)
			url := "http://" + addr + "/mcp"
			r.tryBalancer(t, url, !cannotRepeat(t, name))
		})
	}
}

// tryBalancer is the story of TestBalancers.
func (r *replicas) tryBalancer(t *testing.T, url string, repeats bool) {
	r.awaitReplicas(t, url)
	if _, ok := r.hosts.Load("mcp.example.com:8443"); !ok {
		t.Error("replicas do not learn by which name they were called")
	}
	const size = 4<<20 - 1<<10 // a bit less than max_body
	status := post(t, url, "tools/call", size)
	whole := false
	r.bodies.Range(func(n, _ any) bool { whole = whole || n.(int) > size; return true })
	if status != http.StatusOK || !whole {
		t.Errorf("a call of %d bytes is answered with %d", size, status)
	}
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(soon, http.MethodPost, strings.Replace(url, "/mcp", "/events", 1), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	events := bufio.NewReader(resp.Body)
	if line, err := events.ReadString('\n'); line != "data: first\n" {
		t.Fatalf("the first event is %q, %v", line, err)
	}
	close(r.more)
	if rest, err := io.ReadAll(events); err != nil || !bytes.Contains(rest, []byte("data: second")) {
		t.Errorf("the second event is %q, %v", rest, err)
	}
	for _, c := range []struct {
		method string
		twice  bool
	}{{"tools/call", false}, {"tasks/get", repeats}} {
		r.awaitReplicas(t, url)
		before := r.requests.Load()
		r.deaths.Store(1)
		status := post(t, url, c.method, 100)
		if got := r.requests.Load() - before; got > 1 != c.twice || (status == http.StatusOK) != c.twice {
			t.Errorf("a replica has died with %s: %d have got it, and the answer is %d", c.method, got, status)
		}
	}
}

// awaitReplicas waits until more than one replica gets requests: a balancer may rest one that has died.
func (r *replicas) awaitReplicas(t *testing.T, url string) {
	t.Helper()
	r.answered.Clear()
	programtest.Until(t, "two replicas answer", 2*patience, func() bool {
		post(t, url, "tools/call", 0)
		n := 0
		r.answered.Range(func(any, any) bool { n++; return true })
		return n > 1
	})
}

// listen serves the replicas, three for haproxy.cfg, at loopback addresses of their own. The function that it returns puts these, and one for
// the balancer, in place of names.
func (r *replicas) listen(t *testing.T) func(string) string {
	t.Helper()
	network := fmt.Sprintf("127.%d.%d.", 16+rand.IntN(200), rand.IntN(256))
	at := map[string]string{"balancer": network + "1", "taskgate-a": network + "2", "taskgate-b": network + "3", "taskgate-c": network + "4"}
	for name, ip := range at {
		if name == "balancer" {
			continue
		}
		for _, port := range []string{":8080", ":9090"} {
			l, err := net.Listen("tcp", ip+port)
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: r}
			go func() { _ = server.Serve(l) }()
			t.Cleanup(func() { _ = server.Close() })
		}
	}
	return func(text string) string {
		for name, ip := range at {
			text = regexp.MustCompile(`\b`+name+`:(\d)`).ReplaceAllString(text, ip+":$1")
		}
		// Where balancers listen: at all addresses, in the words of each.
		return regexp.MustCompile(`(listen |bind |address: ")(:?8080\b)`).ReplaceAllStringFunc(text, func(s string) string {
			before, _, _ := strings.Cut(s, "8080")
			return strings.TrimSuffix(before, ":") + at["balancer"] + ":8080"
		})
	}
}

// inFolder keeps what nginx writes in the folder of the test.
func inFolder(_ *testing.T, text, _ string) string {
	return strings.Replace(text, "http {", "http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;", 1)
}

// forCaddy leaves the machine as it is. Caddy 2.6, as Debian has it, has no request_buffers, and cannot repeat a request
// that has a body.
func forCaddy(t *testing.T, text, addr string) string {
	host, _, _ := strings.Cut(addr, ":")
	text = strings.Replace(text, "\n:8080 {", "\nhttp://:8080 {\n\tbind "+host, 1)
	if cannotRepeat(t, "caddy") {
		text = regexp.MustCompile(`(?s)request_buffers.*?lb_retry_match \{.*?\}`).ReplaceAllString(text, "")
	}
	return "{\n\tadmin off\n\tskip_install_trust\n}\n" + text
}

// cannotRepeat reports whether a balancer is one that can repeat no poll.
func cannotRepeat(t *testing.T, name string) bool {
	t.Helper()
	return name == "caddy" && strings.HasPrefix(strings.TrimPrefix(run(t, "caddy", "version"), "v"), "2.6.")
}

// TestIngressSaysWhatNginxDoes: the annotations for ingress-nginx are the settings of nginx.conf, which are tried.
func TestIngressSaysWhatNginxDoes(t *testing.T) {
	text, err := os.ReadFile(balancersDir + "/ingress-nginx.values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files, err := render(t, valuesOf(t, "redis")+string(text))
	if err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile(balancersDir + "/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	annotations := pick[*networking.Ingress](t, admit(t, files)).Annotations
	for name, want := range map[string][2]string{
		"proxy-buffering": {"off", "proxy_buffering off;"}, "proxy-connect-timeout": {"2", "proxy_connect_timeout 2s;"},
		"proxy-read-timeout": {"3600", "proxy_read_timeout 1h;"}, "proxy-body-size": {"4m", "client_max_body_size 4m;"},
		"proxy-next-upstream": {"error timeout", "proxy_next_upstream error timeout;"},
	} {
		if got := annotations["nginx.ingress.kubernetes.io/"+name]; got != want[0] || !bytes.Contains(conf, []byte(want[1])) {
			t.Errorf("%s is %q, want %q and %q in nginx.conf", name, got, want[0], want[1])
		}
		delete(annotations, "nginx.ingress.kubernetes.io/"+name)
	}
	if len(annotations) > 0 {
		t.Errorf("nginx.conf is not compared with %v", annotations)
	}
}
