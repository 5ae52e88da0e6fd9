package stdio

import (
	"context"
	"time"

	"taskgate/gateway/upstream/duplex"
	"taskgate/gateway/upstream/transport"
	"taskgate/shim"
)

// Transport carries messages to processes that it starts when they are needed. It is safe for
// concurrent use. Its owner closes it.
type Transport struct {
	*duplex.Transport
	cfg Config
}

var _ transport.Transport = (*Transport)(nil)

// New makes a transport. No process is started before it is needed.
func New(c Config) *Transport {
	t := &Transport{cfg: c.withDefaults()}
	t.Transport = duplex.New(duplex.Config{
		Open: t.cfg.start, Owner: t.ownerOf, What: "the process of the server",
		Max: t.cfg.MaxProcesses, MaxOwner: (t.cfg.MaxProcesses + 1) / 2, MaxKey: "max_processes", MaxWhat: "processes of this server",
		Exclusive: true, Short: shortLife, Idle: t.cfg.Idle, NoProbe: t.cfg.Modern, Logger: t.cfg.Logger,
	})
	return t
}

// Reach reports whether the program is there. It starts nothing.
func (t *Transport) Reach(context.Context) error {
	_, err := t.cfg.find()
	return err
}

// shortLife is how long a process lives at least that is not started anew for nothing.
const shortLife = time.Minute

// ownerOf names whom a process is for: the principal of the caller of a request. An anonymous
// legacy session has a name of its own, where it may be anybody's.
func (t *Transport) ownerOf(caller shim.Session, legacy bool) duplex.Owner {
	switch {
	case caller.Principal != "":
		return duplex.Owner{Name: "principal " + caller.Principal, Private: true}
	case legacy && !t.cfg.OneUser && caller.Key != "":
		return duplex.Owner{Name: "session " + caller.Key, Kin: "anonymous"}
	}
	return duplex.Owner{Private: t.cfg.OneUser}
}
