package sim

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"taskgate/internal/disktest"
)

// breakThings makes faults, one after the other with some rest between them, until stop is closed.
func (w *World) breakThings(stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(w.opts.Seed, 3))
	for {
		calm := time.Duration(1000+r.IntN(6000)) * time.Millisecond
		if r.IntN(4) == 0 {
			calm = 2 * settle // some calls meet no fault
		}
		select {
		case <-stop:
			return
		case <-time.After(calm):
		}
		faults := withRedis
		if w.disk != nil {
			faults = withFolder
		}
		faults[r.IntN(len(faults))](w, r)
	}
}

// goBack has the store come back as it was some seconds before.
func goBack(w *World, r *rand.Rand) {
	was := w.redis.Snapshot()
	<-time.After(some(r, time.Second, 5*time.Second))
	end := w.Judge.Fault(Ends|Forgets, redisHost, "goes back")
	if err := w.redis.Restore(was); err != nil {
		w.Judge.Blame("the store cannot go back: %v", err)
	}
	<-time.After(settle)
	end()
}

// reload gives all replicas another configuration, one after the other as they look.
func reload(w *World, r *rand.Rand) {
	w.setConfig(w.configWith(fmt.Sprintf("%ds", 1+r.IntN(3))))
	w.Judge.Note("files", "have another grace")
}

// some returns a random time.
func some(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// withRedis and withFolder are what goes wrong. Each returns when it is over.
var withRedis = []func(w *World, r *rand.Rand){
	killReplica, killReplica, drainReplica, freezeReplica, cutClients, cutServer, restartServer, shutServer,
	reload, cutStore, loseStore, partStore, partStore, refuseWrites, slowStore, loseAnswers, goBack,
}

var withFolder = []func(w *World, r *rand.Rand){
	cutPower, cutPower, killProcess, drainAlone, reload, cutClients, cutServer, restartServer, fillDisk,
}

// cutPower ends the only replica, and starts another one over what its folder has then.
func cutPower(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Ends, "power", "is cut")
	w.killAlone(r, func() *disktest.Folder { return w.disk.After(r.IntN(100), r.IntN(2) == 0, r.IntN(2) == 0) })
	end()
}

// killProcess ends the only replica; the machine goes on, so the next one finds all that was written.
func killProcess(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Ends, "process", "is killed")
	w.killAlone(r, func() *disktest.Folder { return w.disk.After(1<<30, false, true) })
	end()
}

func (w *World) killAlone(r *rand.Rand, found func() *disktest.Folder) {
	for _, name := range w.names() {
		w.kill(name, false)
	}
	w.disk = found()
	<-time.After(some(r, 0, 3*time.Second))
	w.start()
}

// drainAlone stops the only replica, and starts another one.
func drainAlone(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Ends, "process", "is drained")
	w.drain(w.pick(r))
	w.start()
	end()
}

// fillDisk has the disk refuse to write.
func fillDisk(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Delays, "disk", "is full")
	w.disk.Fail(syscall.ENOSPC)
	<-time.After(some(r, 0, 6*time.Second))
	w.disk.Fail(nil)
	end()
}

// killReplica kills a replica, and starts another one later.
func killReplica(w *World, r *rand.Rand) {
	name := w.pick(r)
	end := w.Judge.Fault(Ends, name, "is killed")
	w.kill(name, r.IntN(3) == 0)
	<-time.After(some(r, 0, 3*time.Second))
	w.start()
	end()
}

// drainReplica stops a replica after it has started another one, as a rolling update does.
func drainReplica(w *World, r *rand.Rand) {
	name := w.pick(r)
	end := w.Judge.Fault(Ends, name, "is drained")
	w.start()
	w.drain(name)
	end()
}

// freezeReplica has nothing reach a replica, nor come from it, for longer than its heartbeat.
func freezeReplica(w *World, r *rand.Rand) {
	name := w.pick(r)
	var ways []way
	for _, other := range []string{clientHost, redisHost, legacyHost, modernHost} {
		ways = append(ways, way{name, other}, way{other, name})
	}
	w.shutFor(some(r, time.Second, 9*time.Second), Ends|Breaks, ways, name, "is frozen")
}

// shutFor has nothing arrive on some ways for a time.
func (w *World) shutFor(d time.Duration, harms Harm, ways []way, who, format string, args ...any) {
	end := w.Judge.Fault(harms, who, format, args...)
	var open []func()
	for _, way := range ways {
		open = append(open, w.net.Shut(way.from, way.to))
	}
	<-time.After(d)
	for _, o := range open {
		o()
	}
	end()
}

// cutClients ends the connections of all clients.
func cutClients(w *World, _ *rand.Rand) {
	end := w.Judge.Fault(Delays, clientHost, "lose their connections")
	w.net.Cut(clientHost, "")
	end()
}

// cutServer ends the connections of a server.
func cutServer(w *World, r *rand.Rand) {
	host := []string{legacyHost, modernHost}[r.IntN(2)]
	end := w.Judge.Fault(Breaks, host, "loses its connections")
	w.net.Cut(host, "")
	end()
}

// restartServer ends the legacy server, which forgets its sessions, and starts it again.
func restartServer(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Breaks, legacyHost, "dies")
	w.net.Kill(legacyHost, r.IntN(3) == 0)
	w.legacy.forgetSessions()
	<-time.After(some(r, 0, 4*time.Second))
	w.net.Revive(legacyHost)
	end()
}

// shutServer has nothing arrive from a server, or at it, for a while.
func shutServer(w *World, r *rand.Rand) {
	from, to := []string{legacyHost, modernHost}[r.IntN(2)], w.pick(r)
	if r.IntN(2) == 0 {
		from, to = to, from
	}
	w.shutFor(some(r, time.Second, 6*time.Second), Breaks, []way{{from, to}}, from, "reaches %s no more", to)
}

// cutStore ends the connections of the store.
func cutStore(w *World, _ *rand.Rand) {
	end := w.Judge.Fault(Delays, redisHost, "loses its connections")
	w.net.Cut(redisHost, "")
	end()
}

// loseStore takes the store away for a while.
func loseStore(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Ends, redisHost, "is away")
	w.net.Kill(redisHost, r.IntN(3) == 0)
	<-time.After(some(r, 0, 8*time.Second))
	w.net.Revive(redisHost)
	end()
}

// partStore parts a replica from the store for longer than its heartbeat, in one direction or both.
func partStore(w *World, r *rand.Rand) {
	name := w.pick(r)
	ways := []way{{name, redisHost}, {redisHost, name}}
	if one := r.IntN(3); one < 2 {
		ways = ways[one : one+1]
	}
	w.shutFor(some(r, 3*time.Second, 9*time.Second), Ends, ways, name, "does not reach the store")
}

// refuseWrites has the store refuse to write.
func refuseWrites(w *World, r *rand.Rand) {
	answer := []string{
		"OOM command not allowed when used memory > 'maxmemory'.",
		"READONLY You can't write against a read only replica.",
	}[r.IntN(2)]
	end := w.Judge.Fault(Ends, redisHost, "refuses writes: %s", answer)
	w.redis.Refuse(answer)
	<-time.After(some(r, 0, 6*time.Second))
	w.redis.Refuse("")
	end()
}

// slowStore has the store answer late.
func slowStore(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Ends, redisHost, "is slow")
	w.net.Slow(redisHost, some(r, 20*time.Millisecond, 800*time.Millisecond))
	<-time.After(some(r, time.Second, 8*time.Second))
	w.net.Slow(redisHost, 0)
	end()
}

// loseAnswers has some answers of the store get lost, after what was asked is done.
func loseAnswers(w *World, r *rand.Rand) {
	end := w.Judge.Fault(Delays, redisHost, "loses answers")
	w.redis.lossy.Store(true)
	<-time.After(some(r, time.Second, 5*time.Second))
	w.redis.lossy.Store(false)
	end()
}
