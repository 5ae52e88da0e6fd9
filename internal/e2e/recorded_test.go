package e2e

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"taskgate/internal/taskclient"
)

// recorded is a way to Redis that keeps what is said to it.
type recorded struct {
	addr string
	output
}

func record(t *testing.T, store string) *recorded {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return recordAt(t, l, store)
}

// recordAt is record for clients that come to this listener.
func recordAt(t *testing.T, l net.Listener, store string) *recorded {
	t.Helper()
	to, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{addr: l.Addr().String()}
	var work sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to.Host)
			if err != nil {
				_ = client.Close()
				continue
			}
			pass := func(to, from net.Conn, also io.Writer) {
				_, _ = io.Copy(io.MultiWriter(to, also), from)
				_ = to.Close()
				_ = from.Close()
			}
			work.Go(func() { pass(server, client, r) })
			work.Go(func() { pass(client, server, io.Discard) })
		}
	})
	return r
}

// callResumable makes a task of the tool "wait", and returns once the record says where its call can
// be resumed. The event that says so is the only one of the call until the tool ends.
func callResumable(t *testing.T, way *recorded, c *taskclient.Client, args map[string]any) *taskclient.Task {
	t.Helper()
	const checkpoint = `"last":"`
	before := way.count(checkpoint)
	task := callTask(t, c, "wait", args)
	until(t, "the record says where the call can be resumed", func() bool { return way.count(checkpoint) != before })
	return task
}
