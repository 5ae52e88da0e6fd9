package attack

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/internal/wiretest"
)

// bin is where the gateway's program is.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	var builds [][]string
	if programtest.Whole() {
		builds = append(builds, []string{"./cmd/taskgate"})
	}
	os.Exit(programtest.Run(m, &bin, builds...))
}

// kind is one kind of attack.
type kind struct {
	name string
	// attack sends what it likes to the gateway, and returns how many messages that was, and how many bytes with their answers.
	attack func(w *world) sent
	// size is that of a message, for the plain calls beside it.
	size int
}

type sent struct{ messages, bytes int }

// allKinds are all kinds, each at its worst: what is refused at the limit, and what is just taken.
func allKinds() []kind {
	return []kind{
		{"1,000 unfinished headers of 7,500 fields, without a credential", heads(1000, fields(7500)), 58 << 10},
		{"4,000 unfinished headers of 31 KB, without a credential", heads(4000, "L: "+strings.Repeat("x", 31<<10)), 31 << 10},
		{"1,000 requests with 190 fields of 160 bytes and half a body", heads(1000, halfBody()), 31 << 10},
		{"names in the capabilities of a request", calls(16, func() message { return modern("echo", "", names(3500<<10)) }), 3500 << 10},
		{"capabilities just below their limit, in calls that wait", waiting(2000, func() message { return modern("hang", `"arguments":{}`, names(60<<10)) }), 60 << 10},
		{"the same bytes in arguments, in calls that wait", waiting(2000, func() message { return modern("hang", `"arguments":`+names(60<<10), "{}") }), 60 << 10},
		{"names in clientInfo", calls(16, func() message { return modernInfo(names(3500 << 10)) }), 3500 << 10},
		{"a forged state, with names in the arguments", calls(16, func() message { return modern("echo", forged+`"arguments":`+names(3500<<10), "{}") }), 3500 << 10},
		{"a forged state, 900 levels deep around 3.5 MB", calls(8, func() message { return modern("echo", forged+`"arguments":`+deep(900, 3500<<10), "{}") }), 3500 << 10},
		{"answers to an unknown task", calls(16, func() message { return answers(3500 << 10) }), 3500 << 10},
		{"tools with names of 3.5 MB", calls(60, func() message { return modern(strings.Repeat("n", 3500<<10), `"arguments":{}`, "{}") }), 3500 << 10},
		{"tasks with results of 4 MB, which are kept", keepTasks, 3500 << 10},
		{"sessions with streams of 4 MB that can be resumed", inSessions(150, tellsInSession), 64 << 10},
		{"tasks that run, with pieces of 4 MB", fill(150, keptBytes, keepsPieces), 64 << 10},
		{"tasks whose server asks 3 MB", fill(150, askedBytes, isAsked), 64 << 10},
		{"2,000 sessions with 58 kB of clientInfo", calls(2000, func() message { return initialize(100, 58<<10) }), 58 << 10},
		{"10,000 sessions, without a credential", calls(10_000, func() message { return stranger(initialize(100, 100)) }), 1 << 10},
		{"2,000 calls with made-up tokens", calls(2000, madeUp), 1 << 10},
		{"4,000 calls that wait", waiting(4000, func() message { return modern("hang", `"arguments":{}`, "{}") }), 1 << 10},
		{"4,000 streams that are listened to", waiting(4000, listens), 1 << 10},
		{"1,000 sessions with 16 KB of capabilities", calls(1000, func() message { return initialize(16<<10, 100) }), 16 << 10},
		{"a server whose tool mirrors 64 arguments, and 3.5 MB of others", calls(4, func() message { return modern("mirrors", `"arguments":`+names(3500<<10), "{}") }), 3500 << 10},
		{"lists of a server whose schema nests 190 levels around 4 MB", calls(4, listTools), 4 << 20},
	}
}

// TestAttacks: whatever one client or server does, the gateway lives, an honest client is served, and the memory
// stays within what docs/operations.md says.
func TestAttacks(t *testing.T) {
	if !programtest.Whole() {
		t.Skip(`"make attack" runs it`)
	}
	limit := documentedSum(t)
	var table strings.Builder
	table.WriteString("| what comes | messages | MB, with answers | memory, MiB | CPU per MB | that of plain calls | p99 of an honest client: before, during |\n|---|---|---|---|---|---|---|\n")
	for _, k := range allKinds() {
		t.Run(k.name, func(t *testing.T) {
			got := measure(t, k.attack)
			plain := measure(t, calls(min(got.messages/4+1, 16), func() message { return modern("echo", `"arguments":`+names(k.size), "{}") }))
			if got.peak > limit {
				t.Errorf("%d MB of memory, more than the %d of docs/operations.md", got.peak>>20, limit>>20)
			}
			row := fmt.Sprintf("| %s | %d | %.1f | %d | %s | %s | %s, %s |\n", k.name, got.messages, float64(got.bytes)/1e6, got.peak>>20,
				round(got.cpuPerMB()), round(plain.cpuPerMB()), round(got.before), round(got.during))
			t.Log(row)
			table.WriteString(row)
		})
	}
	if *wiretest.Update {
		programtest.TableIn(t, "security.md", "TestAttacks").Compare(t, table.String(), true)
	}
}

// documentedSum is the memory of a gateway in a container of 1 GiB where one caller fills its shares, as the table of
// docs/operations.md has it.
func documentedSum(t *testing.T) (sum int64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| part | at most | all | one caller |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, part := range regexp.MustCompile(`(?m)\| (\d+) MiB \|$`).FindAllStringSubmatch(table, -1) {
		n, _ := strconv.ParseInt(part[1], 10, 64)
		sum += n << 20
	}
	if sum == 0 {
		t.Fatal("docs/operations.md names no sum")
	}
	return sum
}

func round(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
