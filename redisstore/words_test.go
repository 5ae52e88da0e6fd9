package redisstore

import (
	"errors"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// What stands between the gateway and Redis may answer in words of its own: a load balancer with a page, a
// proxy with an error that Redis does not have, or a part of a line. Each is an outage, which is logged with
// those words, and every operation can be repeated after it.
func TestWordsOfAProxy(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	for name, words := range map[string]string{
		"page":      "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		"error":     "-ERR no upstream host\r\n",
		"new error": "-UPSTREAMDOWN no healthy upstream\r\n",
		"half":      "$5\r\nab\r\n",
		"status":    "+SURPRISE\r\n",
		"number":    ":12\r\n",
		"nothing":   "*0\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, redis.Addr)
			o, log := logged()
			o.ReadTimeout = time.Second
			s := openTest(t, proxy.URL(), o)
			task := create(t, s, newTask())
			proxy.Words(words)
			for _, c := range []shim.Change{{Op: "end", To: shim.Completed}, {Tail: []shim.Batch{content("[0]")}}} {
				_, err := s.Apply(t.Context(), task.ID, &held, c)
				is(t, err, shim.ErrUnavailable)
				if errors.Is(err, shim.ErrRefusedWrite) {
					t.Errorf("%v: nobody knows that", err)
				}
			}
			if n := log.count("unknown error"); name != "half" && n == 0 || n > 3 {
				t.Errorf("logged %d times", n)
			}
			proxy.Words("")
			usable(t, s)
			same(t, shim.Completed, end(t, s, task).Status)
		})
	}
}
