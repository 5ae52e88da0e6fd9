package redisstore

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/redis/go-redis/v9"

	"taskgate/shim"
)

// hmget is an HMGET of a part of a task. The names of the fields are boxed once:
// this is the command that polls are made of.
func (s *Store) hmget(ctx context.Context, id shim.ID, part shim.Part) *redis.StringSliceCmd {
	line := make([]any, len(hmgetLines[part]))
	copy(line, hmgetLines[part])
	line[1] = s.keys.task(id)
	return redis.NewStringSliceCmd(ctx, line...)
}

// hmgetLines are the commands, but for the key.
var hmgetLines = func() map[shim.Part][]any {
	lines := map[shim.Part][]any{}
	for part, names := range partFields {
		lines[part] = []any{"hmget", nil}
		for _, n := range names {
			lines[part] = append(lines[part], n)
		}
	}
	return lines
}()

// Get implements shim.Store.
func (s *Store) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	if _, err := shim.ParseID(string(id)); err != nil {
		return shim.Task{}, err
	}
	var task shim.Task
	err := s.do(ctx, "get", func(ctx context.Context) error {
		cmd := s.hmget(ctx, id, part)
		if err := s.reads.Process(ctx, cmd); err != nil {
			return err
		}
		var err error
		task, err = decode(id, part, cmd.Val())
		return err
	})
	return task, err
}

// Batches implements shim.Store: it reads a list from an index on. If there is nothing, it
// asks last whether the task is still there: one that expires meanwhile is not taken for
// one without batches. The list of a task ends when it does.
func (s *Store) Batches(ctx context.Context, id shim.ID, skip int64) ([]json.RawMessage, error) {
	if _, err := shim.ParseID(string(id)); err != nil {
		return nil, err
	}
	var out []json.RawMessage
	err := s.do(ctx, "read", func(ctx context.Context) error {
		list := redis.NewStringSliceCmd(ctx, "lrange", s.keys.batches(id), strconv.FormatInt(max(skip, 0), 10), "-1")
		if err := s.reads.Process(ctx, list); err != nil {
			return err
		}
		if len(list.Val()) == 0 {
			n, err := s.client.Exists(ctx, s.keys.task(id)).Result()
			if err != nil {
				return err
			}
			if n == 0 {
				return shim.ErrNotFound
			}
		}
		out = make([]json.RawMessage, len(list.Val()))
		for i, v := range list.Val() {
			out[i] = json.RawMessage(v)
		}
		return nil
	})
	return out, err
}
