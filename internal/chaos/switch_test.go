package chaos

import (
	"io"
	"net"
	"sync"
	"testing"
)

// tcpSwitch is an address that leads to another one, which can be changed. Where
// that is "", it leads nowhere.
type tcpSwitch struct {
	addr     string
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
}

// newSwitch listens until the test ends.
func newSwitch(t *testing.T, to string) *tcpSwitch {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &tcpSwitch{addr: l.Addr().String(), listener: l, to: to, conns: map[net.Conn]bool{}}
	s.done.Go(s.accept)
	t.Cleanup(func() {
		l.Close()
		s.point("")
		s.done.Wait()
	})
	return s
}

// point leads to another address from now on; connections to the old one are cut.
func (s *tcpSwitch) point(to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = to
	for c := range s.conns {
		c.Close()
	}
	clear(s.conns)
}

func (s *tcpSwitch) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.done.Go(func() { s.carry(c) })
	}
}

// carry takes one connection to where the switch points now.
func (s *tcpSwitch) carry(from net.Conn) {
	defer from.Close()
	s.mu.Lock()
	to := s.to
	s.mu.Unlock()
	if to == "" {
		return
	}
	target, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer target.Close()
	s.mu.Lock()
	current := s.to == to
	if current {
		s.conns[from], s.conns[target] = true, true
	}
	s.mu.Unlock()
	if !current {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, target) // either end closes both
		from.Close()
	})
	_, _ = io.Copy(target, from)
	target.Close()
	back.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, from)
	delete(s.conns, target)
}
