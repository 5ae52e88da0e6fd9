package check

import (
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// series are samples in memory, for the engine of Prometheus to read. (Its own database would bring
// the clients of three clouds along.)
type series struct {
	all map[string]*storedSeries // by their labels
}

type storedSeries struct {
	labels  labels.Labels
	samples []chunks.Sample
}

func (s *series) add(l labels.Labels, at int64, v float64) {
	one := s.all[l.String()]
	if one == nil {
		one = &storedSeries{labels: l}
		s.all[l.String()] = one
	}
	one.samples = append(one.samples, sample{at, v})
}

// Querier implements storage.Queryable. Samples outside of the time that is asked for do no harm.
func (s *series) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		var set found
		for _, one := range s.all {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.labels.Get(m.Name)) }) {
				set.left = append(set.left, one)
			}
		}
		slices.SortFunc(set.left, func(a, b *storedSeries) int { return labels.Compare(a.labels, b.labels) })
		return &set
	}}, nil
}

// found is a storage.SeriesSet.
type found struct {
	left []*storedSeries
	at   *storedSeries
}

func (f *found) Next() bool {
	if len(f.left) == 0 {
		return false
	}
	f.at, f.left = f.left[0], f.left[1:]
	return true
}

func (f *found) At() storage.Series                { return storage.NewListSeries(f.at.labels, f.at.samples) }
func (f *found) Err() error                        { return nil }
func (f *found) Warnings() annotations.Annotations { return nil }

// sample is a chunks.Sample.
type sample struct {
	at int64
	v  float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
