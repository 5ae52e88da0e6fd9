package stdio

import (
	"context"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/duplex"
)

// Transport answers the requests of the upstream client out of processes that it starts when
// they are needed. It is safe for concurrent use. Its owner closes it.
type Transport struct {
	*duplex.Transport
	cfg Config
}

var _ upstream.Transport = (*Transport)(nil)

// New makes a transport. No process is started before it is needed.
func New(c Config) *Transport {
	t := &Transport{cfg: c.withDefaults()}
	t.Transport = duplex.New(duplex.Config{
		Open: t.cfg.start, Owner: t.ownerOf, What: "the process of the server",
		Max: t.cfg.MaxProcesses, MaxKey: "max_processes", MaxWhat: "processes of this server",
		Idle: t.cfg.Idle, ReadTimeout: t.cfg.ReadTimeout, Silence: t.cfg.Silence, Logger: t.cfg.Logger,
	})
	return t
}

// Reach reports whether the program is there. It starts nothing.
func (t *Transport) Reach(context.Context) error {
	_, err := t.cfg.find()
	return err
}

// ownerOf names who shares a process with the caller of a request. own says that nobody does:
// the process is that of one session.
func (t *Transport) ownerOf(ctx context.Context, legacy bool) (owner string, own bool) {
	caller := upstream.CallerOf(ctx)
	switch p := t.cfg.Process; {
	case p == ProcessShared, p == ProcessAuto && !legacy:
		return "", false
	case p == ProcessPrincipal && caller.Principal != "":
		return "principal " + caller.Principal, false
	case legacy:
		return "session", true
	case caller.Key == "":
		return "", false
	}
	return "session " + caller.Key, false
}
