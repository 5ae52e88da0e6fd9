package streamable

import (
	"io"
	"net/http"
	"runtime"
	"testing"

	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/mcp"
)

// A streamed answer costs no buffer of its own, also if the server says more behind it.
func TestStreamsShareTheirBuffers(t *testing.T) {
	const calls = 200
	const answer = `{"jsonrpc":"2.0","id":1,"result":{}}`
	each := map[string]uint64{}
	for kind, body := range map[string]string{mcp.TypeJSON: answer, mcp.TypeSSE: "data: " + answer + "\n\n: bye\n\n"} {
		tr := transportTo(t, "/mcp", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, body)
		})
		call := func() {
			in, err := tr.Request(t.Context(), transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`))
			transporttest.Must(t, err)
			if _, err := transporttest.Read(in); err != nil {
				t.Fatal(err)
			}
			in.Finish()
		}
		call() // it connects
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			call()
		}
		runtime.ReadMemStats(&after)
		each[kind] = (after.TotalAlloc - before.TotalAlloc) / calls
	}
	// A buffer has 32 KiB. Under the race detector a pool forgets a quarter of what it is given.
	if stream, whole := each[mcp.TypeSSE], each[mcp.TypeJSON]; stream > whole+24<<10 {
		t.Errorf("%d bytes are allocated for a streamed answer, and %d for another one", stream, whole)
	}
}
