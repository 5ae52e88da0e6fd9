package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"taskgate/internal/semconv"
)

// The counts of a minute are kept for a while, each upstream's apart, and can be added up.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(noop.NewMeterProvider())
		if err != nil {
			t.Fatal(err)
		}
		first := time.Now().Unix() / 60
		a, b := m.Tasks("a"), m.Tasks("b")
		a.Called(t.Context(), "x", semconv.AnswerReply, 15*time.Millisecond)
		a.Called(t.Context(), "x", semconv.AnswerTask, time.Second)
		a.Made("t")
		b.Ended(t.Context(), "x", semconv.OutcomeFailed, 10*time.Hour)
		<-time.After(time.Minute)
		a.Made("t")
		got := m.Recent()
		var sum Counts
		for _, c := range got[first] {
			sum.Add(c)
		}
		if len(got) != 2 || len(got[first]) != 2 || got[first+1]["a"].Made != 1 {
			t.Errorf("%+v", got)
		}
		if sum.Calls[semconv.AnswerReply] != 1 || sum.Calls[semconv.AnswerTask] != 1 || sum.Made != 1 || sum.Ended[semconv.OutcomeFailed] != 1 {
			t.Errorf("%+v", sum)
		}
		if sum.Durations[1] != 1 || sum.Durations[len(RecentBounds)] != 1 {
			t.Errorf("15 ms and 10 h are in %v", sum.Durations)
		}
		<-time.After(recentMinutes * time.Minute)
		if b.Ended(t.Context(), "x", semconv.OutcomeFailed, 0); len(m.Recent()) != 1 {
			t.Errorf("%d minutes are kept", len(m.Recent()))
		}
	})
}
