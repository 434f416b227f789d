// Package provider stands for a mail provider. It keeps its own books, and refuses mails above its limits. It has no code
// of the outbox.
package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

// The limits of the provider. They hold for all clients together.
const (
	PerMailbox = 1   // mails of a mailbox that are sent at once
	PerTenant  = 5   // mails of a tenant that are sent at once
	PerCall    = 100 // mails of one call of SendAll
)

// Mail is what is sent. The provider sends one key once, however often it gets it.
type Mail struct {
	Key                 string
	TenantID, MailboxID uuid.UUID
	To, Text            string
}

// Unreadable is a text that the provider cannot read. A call of SendAll with it fails as a whole, and the answer does not say
// for which mail.
const Unreadable = "\x01"

// ErrUnreadable says that a text of the call cannot be read. Nothing of the call was sent.
var ErrUnreadable = errors.New("400: a text is unreadable")

// ErrNoAddress says that nobody has the address.
var ErrNoAddress = errors.New("550: no such address")

// TooManyError says that a limit was exceeded. The mail was not sent.
type TooManyError struct{ After time.Duration }

func (e *TooManyError) Error() string { return fmt.Sprintf("429: too many, try again in %s", e.After) }

// Provider sends mails. Any number of goroutines may use it concurrently.
type Provider struct {
	rate   int
	period time.Duration
	takes  time.Duration

	mu      sync.Mutex
	running map[uuid.UUID]int
	mostOf  map[uuid.UUID]int
	starts  map[uuid.UUID][]time.Time
	seen    map[string]int
	refused int
	batches []int
}

// New returns a provider that takes rate mails of a mailbox in each period, and so long for each call.
func New(rate int, period, takes time.Duration) *Provider {
	return &Provider{
		rate: rate, period: period, takes: takes, running: make(map[uuid.UUID]int), mostOf: make(map[uuid.UUID]int),
		starts: make(map[uuid.UUID][]time.Time), seen: make(map[string]int),
	}
}

// Send sends m, or returns why it did not.
func (p *Provider) Send(ctx context.Context, m Mail) error {
	if err := p.begin(m); err != nil {
		return err
	}
	defer p.end(m)
	if err := p.work(ctx); err != nil {
		return err
	}
	return p.accept(m)
}

// SendAll sends up to PerCall mails, and returns for each of them why it was not sent. If the call fails as a whole, nothing
// was sent.
func (p *Provider) SendAll(ctx context.Context, ms []Mail) ([]error, error) {
	if len(ms) > PerCall {
		return nil, fmt.Errorf("413: %d mails in a call of at most %d", len(ms), PerCall)
	}
	p.mu.Lock()
	p.batches = append(p.batches, len(ms))
	p.mu.Unlock()
	if err := p.work(ctx); err != nil {
		return nil, err
	}
	for _, m := range ms {
		if m.Text == Unreadable {
			return nil, ErrUnreadable
		}
	}
	errs := make([]error, len(ms))
	for i, m := range ms {
		errs[i] = p.accept(m)
	}
	return errs, nil
}

func (p *Provider) begin(m Mail) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	starts := p.starts[m.MailboxID]
	if n := len(starts) - p.rate; n >= 0 && now.Sub(starts[n]) < p.period {
		p.refused++
		return &TooManyError{After: p.period - now.Sub(starts[n])}
	}
	if p.running[m.MailboxID] == PerMailbox || p.running[m.TenantID] == PerTenant {
		p.refused++
		return &TooManyError{After: time.Second}
	}
	p.starts[m.MailboxID] = append(starts, now)
	for _, id := range []uuid.UUID{m.MailboxID, m.TenantID} {
		p.running[id]++
		p.mostOf[id] = max(p.mostOf[id], p.running[id])
	}
	return nil
}

func (p *Provider) end(m Mail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[m.MailboxID]--
	p.running[m.TenantID]--
}

// work takes as long as a call takes.
func (p *Provider) work(ctx context.Context) error {
	select {
	case <-time.After(p.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Provider) accept(m Mail) error {
	if m.To == "nobody@example.com" {
		return ErrNoAddress
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[m.Key]++
	return nil
}

// Books are what a Provider has seen.
type Books struct {
	Sent    map[string]int            // how often each key was sent; a key that came again counts once more, and was not sent
	Most    map[uuid.UUID]int         // mails of each mailbox and tenant that were sent at once, at most
	Starts  map[uuid.UUID][]time.Time // of each mailbox, in their order
	Batches []int                     // mails in each call of SendAll
	Refused int                       // mails above a limit
}

// Books returns what p has seen so far.
func (p *Provider) Books() Books {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := Books{Sent: maps.Clone(p.seen), Most: maps.Clone(p.mostOf), Starts: make(map[uuid.UUID][]time.Time), Refused: p.refused}
	for id, starts := range p.starts {
		b.Starts[id] = append([]time.Time(nil), starts...)
	}
	b.Batches = append(b.Batches, p.batches...)
	return b
}
