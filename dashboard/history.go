package dashboard

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/admin"
)

const (
	sampleEvery = 10 * time.Second
	historySpan = time.Hour
)

// The kinds of series.
const (
	seriesDue       = "due"       // events that wait: due ones; those that a listener has not read; those at a limit
	seriesOldest    = "oldest"    // seconds
	seriesDelivered = "delivered" // per second
	seriesEnqueued  = "enqueued"  // per second
	seriesDead      = "dead"
)

// seriesKey names a series: of a topic, or of a listener or a limit if the name begins with "listener " or "limit ".
type seriesKey struct {
	of, kind string
}

// ofListener is the seriesKey.of of a listener. A space cannot be in the name of a topic.
func ofListener(name string) string { return "listener " + name }

// ofLimit is the seriesKey.of of a limit.
func ofLimit(s admin.LimitScope) string { return "limit " + s.String() }

// point is a value at a time.
type point struct {
	at    time.Time
	value float64
}

// history keeps the samples of the last hour.
type history struct {
	mu     sync.Mutex
	series map[seriesKey][]point
}

func newHistory() *history { return &history{series: make(map[seriesKey][]point)} }

// add appends what is known at a time, and forgets what is older than an hour.
func (h *history) add(at time.Time, values map[seriesKey]float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, v := range values {
		h.series[key] = append(h.series[key], point{at, v})
	}
	for key, points := range h.series {
		first := slices.IndexFunc(points, func(p point) bool { return at.Sub(p.at) <= historySpan })
		switch {
		case first < 0:
			delete(h.series, key)
		case first > 0:
			h.series[key] = append(points[:0], points[first:]...)
		}
	}
}

// fill puts points from elsewhere in front of those that were sampled.
func (h *history) fill(series map[seriesKey][]point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, points := range series {
		own := h.series[key]
		if len(own) > 0 {
			points = slices.DeleteFunc(points, func(p point) bool { return !p.at.Before(own[0].at) })
		}
		h.series[key] = append(slices.Clone(points), own...)
	}
}

// of returns the points of a series, oldest first.
func (h *history) of(of, kind string) []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.series[seriesKey{of, kind}])
}

// sample keeps the overview, until ctx ends.
func (p *Page) sample(ctx context.Context) {
	if p.upstream != nil {
		if series, err := p.upstream.lastHour(ctx); err != nil {
			p.cfg.Logger.WarnContext(ctx, "dashboard: charts begin now, because Prometheus did not answer", "error", err)
		} else {
			p.history.fill(series)
		}
	}
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	failing := false
	for {
		r := p.overview.get(ctx, sampleEvery/2, readLimit)
		switch {
		case ctx.Err() != nil:
			return
		case r.err != nil && !failing:
			p.cfg.Logger.WarnContext(ctx, "dashboard: figures cannot be read", "error", r.err)
		case r.err == nil && failing:
			p.cfg.Logger.InfoContext(ctx, "dashboard: the database answers again")
		}
		failing = r.err != nil
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// figures are what is read together, for all pages that show the present.
type figures struct {
	admin.Overview
	Limits []admin.LimitStatus
}

// readOverview reads the overview and the limits, and keeps their numbers for the charts.
func (p *Page) readOverview(ctx context.Context) (o figures, err error) {
	if o.Overview, err = p.ops.Overview(ctx); err != nil {
		return o, err
	}
	if o.Limits, err = p.ops.Limits(ctx); err != nil {
		return o, err
	}
	values := make(map[seriesKey]float64)
	for _, t := range o.Topics {
		values[seriesKey{t.Name(), seriesDue}] = float64(t.Due.N)
		values[seriesKey{t.Name(), seriesOldest}] = t.Oldest.Seconds()
		values[seriesKey{t.Name(), seriesDelivered}] = t.DeliveredPerSecond
		values[seriesKey{t.Name(), seriesEnqueued}] = t.EnqueuedPerSecond
		values[seriesKey{t.Name(), seriesDead}] = float64(t.Dead.N)
	}
	for _, t := range o.LogTopics {
		values[seriesKey{t.Name(), seriesEnqueued}] = t.AppendedPerSecond
	}
	for _, l := range admin.SumShards(o.Listeners) {
		of := ofListener(l.Listener)
		values[seriesKey{of, seriesDue}] = float64(l.Unread + l.ParkedEvents)
		values[seriesKey{of, seriesOldest}] = l.Lag.Seconds()
		values[seriesKey{of, seriesDead}] = float64(l.DeadLetters)
	}
	for _, l := range o.Limits {
		_, waiting := l.Full()
		values[seriesKey{ofLimit(l.LimitScope), seriesDue}] = float64(waiting)
	}
	p.history.add(time.Now(), values)
	return o, nil
}
