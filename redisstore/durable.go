package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// run runs a script. What must survive the loss of a master is durable: it has
// then reached WaitReplicas replicas, or the error is ErrNotReplicated. WAIT counts
// for the connection it comes on, so both go over one, to the master of the slot.
func (s *Store) run(ctx context.Context, sc *script, keys []string, args *argv, durable bool) ([]string, error) {
	if !durable || s.opts.WaitReplicas == 0 {
		return sc.run(ctx, s.client, keys, args)
	}
	conn, err := s.conn(ctx, keys[0])
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	v, err := sc.run(ctx, conn, keys, args)
	if err == nil && v[0] == codeAgain {
		// Written before, maybe on another connection. From Redis 7.2 on WAIT waits
		// only for what its own connection has written, so something has to be.
		_, err = touchScript.run(ctx, conn, keys[:1], &argv{})
	}
	if err != nil {
		return nil, err
	}
	// Redis wakes it, after WaitTimeout at the latest; the write is repeated then.
	n, err := conn.Wait(ctx, s.opts.WaitReplicas, s.opts.WaitTimeout).Result()
	if err == nil && n < int64(s.opts.WaitReplicas) {
		err = ErrNotReplicated
	}
	return v, err
}

// conn takes a connection to the master of a key out of the pool.
func (s *Store) conn(ctx context.Context, key string) (*redis.Conn, error) {
	switch c := s.client.(type) {
	case *redis.ClusterClient:
		master, err := c.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		return master.Conn(), nil
	default:
		return c.(*redis.Client).Conn(), nil
	}
}

// reroute has a cluster client look anew which node has which slot. By itself it
// does so where a node sends it elsewhere, which one that is down does not, and never
// for a connection that was taken out of the pool; else every ten seconds.
func reroute(ctx context.Context, client redis.UniversalClient) {
	if c, ok := client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}
