package sim

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"

	"taskgate/internal/redistest"
)

// redisHost is the name of the host of the store.
const redisHost = "redis"

// Redis is the store of all replicas: a Redis in memory behind the network.
type Redis struct {
	*redistest.Memory
	net   *Network
	lossy atomic.Bool // every tenth answer is lost
	rand  *rand.Rand  // Network.mu guards it
}

// startRedis starts a Redis on its host.
func startRedis(n *Network, seed uint64) *Redis {
	r := &Redis{Memory: redistest.NewMemory(), net: n, rand: rand.New(rand.NewPCG(seed, 4))}
	r.listen()
	return r
}

// listen has the host take connections, until it is killed.
func (r *Redis) listen() {
	l := r.net.Listen(redisHost)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.serve(c)
		}
	}()
}

// serve connects a client with the Redis. Neither waits for the other to read: a Redis has a buffer for each client.
func (r *Redis) serve(c net.Conn) {
	inner, err := r.Dial(context.Background(), "", "")
	if err != nil {
		_ = c.Close()
		return
	}
	end := func() { _, _ = c.Close(), inner.Close() }
	go func() {
		defer end()
		_, _ = io.Copy(inner, c) // the end of either is that of both
	}()
	go func() {
		defer end()
		r.answer(c, inner)
	}()
}

// answer passes on what the Redis says, unless that is to be lost: then the connection ends.
func (r *Redis) answer(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil || r.lossy.Load() && r.isLost() {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (r *Redis) isLost() bool {
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	return r.rand.IntN(10) == 0
}
