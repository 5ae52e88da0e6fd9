package redisstore

import (
	"testing"

	"taskgate/internal/redistest"
)

// Operators see how a Redis is, and how large a folder.
func TestCondition(t *testing.T) {
	for name, c := range map[string]struct {
		url, folder string
		masters     int
	}{"redis": {url: redistest.Start(t).URL(), masters: 1}, "memory": {url: "embedded"}, "folder": {}} {
		t.Run(name, func(t *testing.T) {
			if name == "folder" {
				c.folder = t.TempDir()
				c.url = "file:" + c.folder
			}
			s, err := Open(t.Context(), c.url, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			got, err := s.Overview().Condition(t.Context(), c.folder)
			if err != nil || got.Latency <= 0 || got.Masters != c.masters || len(got.Addresses) != c.masters || (got.UsedMemory > 0) != (c.masters > 0) || (got.FolderBytes > 0) != (c.folder != "") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A cluster is as safe as its master with the fewest replicas.
func TestConditionOfSeveralMasters(t *testing.T) {
	var c Condition
	c.addMaster("# Memory\r\nused_memory:100\r\nused_memory_rss:7\r\nmaxmemory:1000\r\nconnected_slaves:2\r\n")
	c.addMaster("# Memory\r\nused_memory:50\r\nmaxmemory:1000\r\nconnected_slaves:1\r\n")
	if c.Masters != 2 || c.UsedMemory != 150 || c.MaxMemory != 2000 || c.Replicas != 1 {
		t.Errorf("%+v", c)
	}
}
