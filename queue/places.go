package queue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/queue/internal/core"
)

const (
	// headShare is how many times as long as a walk from the head is the time until the next one: walks over what cannot be
	// claimed here take at most a 33rd of the time.
	headShare = 32
	// mostPlaces is for how many selections of events a Store remembers its place.
	mostPlaces = 64
)

// places has where the claims of a Store without a Cursor have come, by which events they select. Only claims that met more
// than a piece of events which they may not take are remembered: others begin at the head at no cost.
type places struct {
	mu     sync.Mutex
	of     map[string]place
	resets int // each makes what is under way of no matter
}

type place struct {
	walk   core.Walk
	paused *core.Pauses // what it has passed over
	head   time.Time    // when a claim begins at the head again
}

// visit is one claim from the head, or from a place.
type visit struct {
	key    string
	resets int
	began  time.Time
	head   time.Time // of its place; zero if it begins at the head
	passes bool      // it has met a whole piece of what it may not take
}

// take returns where a claim begins.
func (p *places) take(cfg *ClaimConfig) (*Cursor, *visit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := &visit{key: selection(cfg), resets: p.resets, began: time.Now()}
	at, known := p.of[v.key]
	if !known || !v.began.Before(at.head) {
		return &Cursor{}, v
	}
	v.head = at.head
	return &Cursor{walk: at.walk.Resume(), paused: at.paused}, v
}

// leave remembers that v has come to c.
func (p *places) leave(v *visit, c *Cursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case v.resets != p.resets:
	case v.head.IsZero() && !v.passes:
		delete(p.of, v.key)
	default:
		head := v.head
		if head.IsZero() {
			now := time.Now()
			head = now.Add(headShare * now.Sub(v.began))
		}
		if p.of == nil || len(p.of) >= mostPlaces {
			p.of = map[string]place{}
		}
		p.of[v.key] = place{walk: c.walk, paused: c.paused, head: head}
	}
}

// reset makes the next claims begin at the head.
func (p *places) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resets++
	clear(p.of)
}

// selection names the events that cfg selects.
func selection(cfg *ClaimConfig) string {
	tenants := slices.SortedFunc(slices.Values(cfg.TenantIDs), func(a, b uuid.UUID) int { return cmp.Compare(a.String(), b.String()) })
	versions := slices.Sorted(maps.Keys(cfg.Versions))
	for i, topic := range versions {
		versions[i] = fmt.Sprintf("%s %d", topic, cfg.Versions[topic])
	}
	return fmt.Sprintf("%q %v %q", slices.Sorted(slices.Values(cfg.Topics)), tenants, versions)
}
