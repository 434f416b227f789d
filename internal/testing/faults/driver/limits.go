package driver

import (
	"slices"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
	"github.com/outboxgen/outboxgen/outbox"
)

// declared is what outbox.yaml of both editions says of reminders.
var declared = []check.Limit{
	{Topic: shop.ReminderDue, AtOnce: []check.Value{{N: 8}}},
	{Topic: shop.ReminderDue, PerTenant: true, AtOnce: []check.Value{{N: 3}}, Starts: 40, Period: 2 * time.Second},
}

// limits is what the limits of reminders were.
type limits struct {
	mu   sync.Mutex
	sets [2][]check.Value // of declared
}

// set notes that the number of one of declared is n from now on. Call it after one that is less was set, and before another is.
func (l *limits) set(i, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sets[i] = append(l.sets[i], check.Value{From: time.Now().UnixMicro(), N: n})
}

// all returns the limits with all their values.
func (l *limits) all() []check.Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(declared)
	for i := range all {
		all[i].AtOnce = append(slices.Clone(all[i].AtOnce), l.sets[i]...)
	}
	return all
}

// rate is what one of declared says of starts.
func rate(l check.Limit) (r outbox.Rate) {
	if l.Starts > 0 {
		r = outbox.Rate{Events: l.Starts, Period: l.Period}
	}
	return r
}
