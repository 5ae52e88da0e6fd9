package config

import (
	"strings"

	"taskgate/internal/storeurl"
)

// checkStore checks the store as far as that is possible without a connection.
func (p *problems) checkStore(c *Config) {
	if !c.OwnsStore() {
		if _, err := storeurl.Parse(c.Store); err != nil {
			p.add("store", "%s", err)
		}
		return
	}
	if c.WaitReplicas > 0 {
		p.addFor([]string{"wait_replicas", "store"}, "only a Redis has replicas to wait for")
	}
	switch path, onDisk := c.StoreFolder(); {
	case onDisk && path == "":
		p.add("store", "file: needs the path of a folder")
	case strings.HasPrefix(path, "~"): // a shell does not expand it behind "file:"
		p.add("store", "the folder must not begin with ~, which is not replaced: write the whole path")
	}
}
