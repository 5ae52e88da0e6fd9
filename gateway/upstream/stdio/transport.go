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

// New makes a transport. Processes are started when they are needed.
func New(c Config) *Transport {
	t := &Transport{cfg: c.withDefaults()}
	t.Transport = duplex.New(duplex.Config{
		Open: t.cfg.start, Owner: t.ownerOf, What: "the process of the server",
		Max: t.cfg.MaxProcesses, MaxOwner: (t.cfg.MaxProcesses + 1) / 2, MaxKey: "max_processes", MaxWhat: "processes of this server",
		Exclusive: true, Short: shortLife, Idle: t.cfg.Idle, NoProbe: t.cfg.Modern, Logger: t.cfg.Logger,
	})
	return t
}

// Reach returns an error if the program is missing. It starts nothing.
func (t *Transport) Reach(context.Context) error {
	_, err := t.cfg.find()
	return err
}

// shortLife is the life below which the end of a process counts as a failure.
const shortLife = time.Minute

// ownerOf names the owner of a process: the principal of the request's caller. An anonymous
// legacy session has a name of its own, unless all anonymous callers are one user.
func (t *Transport) ownerOf(caller shim.Session, legacy bool) duplex.Owner {
	switch {
	case caller.Principal != "":
		return duplex.Owner{Name: "principal " + caller.Principal, Private: true}
	case legacy && !t.cfg.OneUser && caller.Key != "":
		return duplex.Owner{Name: "session " + caller.Key, Kin: "anonymous"}
	}
	return duplex.Owner{Private: t.cfg.OneUser}
}
