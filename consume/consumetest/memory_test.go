package consumetest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }

// TestConformance: the suite passes for a transport in memory.
func TestConformance(t *testing.T) {
	consumetest.Conformance(t, harness(transport{}))
}

// shard is a part of a topic: a log, and how much of it is acknowledged.
type shard struct {
	number int
	mu     sync.Mutex
	log    []receive.Message
	acked  int           // as a mark: everything in front of it
	owner  chan struct{} // has an element while a process reads
	more   chan struct{} // closed when there is more
}

// memory is a topic in memory. Its shards are read by one process at a time.
type memory struct {
	mu        sync.Mutex
	shards    []*shard
	rebalance chan struct{} // closed by a rebalance
}

func newMemory() *memory {
	m := &memory{rebalance: make(chan struct{})}
	for i := range 2 {
		m.shards = append(m.shards, &shard{number: i, owner: make(chan struct{}, 1), more: make(chan struct{})})
	}
	return m
}

func (m *memory) send(_ context.Context, ms []consumetest.Message) error {
	for _, sent := range ms {
		h := fnv.New32a()
		_, _ = h.Write([]byte(sent.Key))
		s := m.shards[h.Sum32()>>3%uint32(len(m.shards))]
		s.mu.Lock()
		place := fmt.Sprintf("memory:%d/%d", s.number, len(s.log))
		s.log = append(s.log, receive.Message{Message: sent.Message, Key: sent.Key, Place: place})
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
	}
	return nil
}

func (m *memory) pending(context.Context) (n int, err error) {
	for _, s := range m.shards {
		s.mu.Lock()
		n += len(s.log) - s.acked
		s.mu.Unlock()
	}
	return n, nil
}

func (m *memory) rebalances(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.rebalance)
	m.rebalance = make(chan struct{})
	return nil
}

func (m *memory) generation() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rebalance
}

// fetch returns the next messages, and waits for them.
func (s *shard) fetch(ctx context.Context) []receive.Message {
	for {
		s.mu.Lock()
		ms, more := slices.Clone(s.log[s.acked:min(len(s.log), s.acked+50)]), s.more
		s.mu.Unlock()
		if len(ms) > 0 {
			return ms
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}

// ack acknowledges the next n messages.
func (s *shard) ack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked += n
}

// transport runs a receiver on a memory. A mutant replaces a part of it.
type transport struct {
	settle func(ctx context.Context, p *process, ms []receive.Message, ack func(n int)) error
	change func(cfg *receive.Config)
	before func(p *process) // before a run
	after  func(err error) error
	blind  bool // nobody tries parked messages again
}

// process is a running process of a transport.
type process struct {
	*receive.Receiver
	pool     *pgxpool.Pool
	state    sync.Map     // of a mutant
	failures atomic.Int64 // of methods
}

// settle is what a transport does with messages: it acknowledges those with an outcome, up to the first without one.
func settle(ctx context.Context, p *process, ms []receive.Message, ack func(n int)) error {
	outcomes, err := p.Receive(ctx, ms)
	n := slices.Index(outcomes, "")
	if n < 0 {
		n = len(outcomes)
	}
	ack(n)
	return err
}

// run runs the receiver until ctx ends.
func (tr transport) run(ctx context.Context, m *memory, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
	if tr.settle == nil {
		tr.settle = settle
	}
	p := &process{pool: pool}
	observer := *cmp.Or(cfg.Observer, &receive.Observer{})
	observer.Failed = func(receive.Failed) { p.failures.Add(1) }
	cfg.Observer = &observer
	if tr.change != nil {
		tr.change(&cfg)
	}
	r, err := receive.New(pool, c, cfg)
	if err != nil {
		return err
	}
	p.Receiver = r
	if tr.before != nil {
		tr.before(p)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var errs []error
	var running sync.WaitGroup
	begin := func(f func() error) {
		running.Go(func() {
			defer cancel()
			err := f()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	if !tr.blind {
		begin(func() error { return r.Run(ctx) })
	}
	for _, s := range m.shards {
		begin(func() error { return tr.read(ctx, m, s, p) })
	}
	running.Wait()
	err = errors.Join(errs...)
	if tr.after != nil {
		err = tr.after(err)
	}
	return err
}

// read reads a shard whenever it is this process's turn.
func (tr transport) read(ctx context.Context, m *memory, s *shard, p *process) error {
	for ctx.Err() == nil {
		select {
		case s.owner <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		err := func() error {
			defer func() { <-s.owner }()
			own, lose := context.WithCancel(ctx)
			defer lose()
			again := m.generation()
			stop := context.AfterFunc(ctx, lose)
			defer stop()
			go func() {
				select {
				case <-again:
					lose()
				case <-own.Done():
				}
			}()
			for {
				ms := s.fetch(own)
				if own.Err() != nil {
					return nil
				}
				if err := tr.settle(own, p, ms, s.ack); err != nil && own.Err() == nil {
					return err
				}
			}
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

// harness is that of a transport in memory.
func harness(tr transport) consumetest.Harness {
	var all sync.Map
	return consumetest.Harness{
		Open: func(t testing.TB) consumetest.Broker {
			m := newMemory()
			address := fmt.Sprintf("%p", m)
			all.Store(address, m)
			return consumetest.Broker{Address: address, Local: true, Send: m.send, Pending: m.pending, Rebalance: m.rebalances}
		},
		Run: func(ctx context.Context, address string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			m, _ := all.Load(address)
			return tr.run(ctx, m.(*memory), pool, c, cfg)
		},
	}
}
