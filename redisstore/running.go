package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// Running implements shim.Store. A part is the sixteen shards whose hash tags begin with
// its digit. One Redis is asked for their union with one command, because this is asked
// at every heartbeat; the shards of a cluster are asked one by one.
func (s *Store) Running(ctx context.Context, r shim.Replica, part int) ([]shim.Held, error) {
	const n = len(shards) / shim.Parts
	keys := make([]string, n)
	for i, tag := range shards[part*n : (part+1)*n] {
		keys[i] = s.keys.run(tag, r)
	}
	var out []shim.Held
	err := s.do(ctx, "running", func() error {
		lists := [][]redis.Z{nil}
		var err error
		if _, many := s.client.(*redis.ClusterClient); many {
			lists, err = s.ranges(ctx, keys)
		} else {
			lists[0], err = s.client.ZUnionWithScores(ctx, redis.ZStore{Keys: keys}).Result()
		}
		out = nil
		for _, list := range lists {
			for _, z := range list {
				id, _ := z.Member.(string)
				out = append(out, shim.Held{ID: shim.ID(id), Version: int64(z.Score)})
			}
		}
		return err
	})
	return out, err
}

// ranges reads sorted sets of several slots. What could be read comes with the error of
// what could not.
func (s *Store) ranges(ctx context.Context, keys []string) ([][]redis.Z, error) {
	p := s.client.Pipeline()
	cmds := make([]*redis.ZSliceCmd, len(keys))
	for i, key := range keys {
		cmds[i] = p.ZRangeWithScores(ctx, key, 0, -1)
	}
	_, err := p.Exec(ctx)
	lists := make([][]redis.Z, len(keys))
	for i, cmd := range cmds {
		lists[i] = cmd.Val()
	}
	return lists, err
}
