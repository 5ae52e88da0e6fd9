package redistest

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"
)

// A reply comes later, but does not wait for the one before it.
func TestLatency(t *testing.T) {
	const latency, commands = 100 * time.Millisecond, 20
	p := NewProxy(t, Start(t).Addr)
	p.Latency("ping", latency)
	c, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	replies := bufio.NewScanner(c)
	begin := time.Now()
	for i := range commands {
		if _, err := fmt.Fprint(c, "PING\r\n"); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			continue
		}
		if !replies.Scan() || replies.Text() != "+PONG" || time.Since(begin) < latency {
			t.Fatalf("%q after %s, %v", replies.Text(), time.Since(begin), replies.Err())
		}
	}
	for range commands - 1 {
		if !replies.Scan() || replies.Text() != "+PONG" {
			t.Fatalf("%q, %v", replies.Text(), replies.Err())
		}
	}
	if took := time.Since(begin); took < 2*latency || took > commands*latency/2 {
		t.Fatalf("%d commands took %s", commands, took)
	}
}
