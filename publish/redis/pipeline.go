package redis

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// The limits of pipelines: how many are on their way concurrently, and how much is in one. While one is on its way the
// next entries gather, so that its size follows the load.
const (
	maxPipelines = 4
	maxEntries   = 500
	maxBytes     = 4 << 20
)

// pipelines send the entries of one server. Those of one key are never in it together, because each waits for the one
// before.
type pipelines struct {
	mu      sync.Mutex
	waiting []*entry
	running int
}

// submit sends entries with the next pipelines.
func (p *Publisher) submit(entries []*entry) {
	p.lines.mu.Lock()
	p.lines.waiting = append(p.lines.waiting, entries...)
	start := p.lines.running < maxPipelines
	if start {
		p.lines.running++
	}
	p.lines.mu.Unlock()
	if start {
		p.sends.Go(p.flush)
	}
}

// flush sends pipelines until nothing waits.
func (p *Publisher) flush() {
	for {
		runtime.Gosched() // those that are about to submit an entry do it now
		batch := p.lines.take()
		if len(batch) == 0 {
			return
		}
		p.exec(batch)
	}
}

// take returns what the next pipeline sends. If nothing waits, the caller is not running any more.
func (l *pipelines) take() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.waiting) && n < maxEntries && (n == 0 || size+l.waiting[n].size <= maxBytes) {
		size += l.waiting[n].size
		n++
	}
	batch := l.waiting[:n:n]
	if l.waiting = l.waiting[n:]; n == 0 {
		l.waiting = nil
		l.running--
	}
	return batch
}

// exec sends entries in one round trip, and waits once until the replicas have them.
func (p *Publisher) exec(batch []*entry) {
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Timeout)
	defer cancel()
	pipe := p.client.Pipeline()
	for _, e := range batch {
		if e.ctx.Err() == nil { // else Publish has returned, and the event may be sent elsewhere
			e.added = goredis.NewStringCmd(ctx, e.args...)
			_ = pipe.Process(ctx, e.added) // has no error of its own
		}
	}
	var waited *goredis.Cmd
	if p.cfg.Replicas > 0 && pipe.Len() > 0 {
		waited = p.wait(ctx, pipe)
	}
	var err error
	if pipe.Len() > 0 {
		_, err = pipe.Exec(ctx) // the first error of the commands
	}
	missing := p.missing(waited)
	for i, e := range batch {
		if e.added == nil {
			e.call.Add(e.i, context.Cause(e.ctx))
		} else {
			e.call.Add(e.i, p.outcome(e, cmp.Or(refusal(e.added, err), missing)))
		}
		if i == len(batch)-1 || batch[i+1].call != e.call {
			e.call.Wake()
		}
	}
}

// refusal returns why a stream has no entry of a command, or nil. exec is the error of its pipeline: when Redis refuses
// the connection itself, the client sets no error in the commands.
func refusal(added *goredis.StringCmd, exec error) error {
	if added.Err() == nil && added.Val() == "" {
		return cmp.Or(exec, errNoAnswer)
	}
	return added.Err()
}

var errNoAnswer = errors.New("the client has no answer of Redis, and no error")

// wait adds the command that waits until the replicas have what the pipeline has sent.
func (p *Publisher) wait(ctx context.Context, pipe goredis.Pipeliner) *goredis.Cmd {
	return pipe.Do(ctx, "wait", p.cfg.Replicas, (p.cfg.Timeout / 2).Milliseconds())
}

// missing returns an error if too few replicas have what a pipeline has sent. waited is nil without Config.Replicas.
func (p *Publisher) missing(waited *goredis.Cmd) error {
	if waited == nil {
		return nil
	}
	have, err := waited.Int64()
	if err == nil && have < int64(p.cfg.Replicas) {
		err = &tooFew{have: have, want: p.cfg.Replicas}
	}
	return err
}

// addInCluster appends an entry to a stream of a cluster, by itself: a node that is away must not hold up the entries
// of others.
func (p *Publisher) addInCluster(ctx context.Context, e *entry) error {
	added := goredis.NewStringCmd(ctx, e.args...)
	if p.cfg.Replicas == 0 {
		return p.cluster.Process(ctx, added)
	}
	master, err := p.cluster.MasterForKey(ctx, e.stream) // WAIT names no key by which the cluster could route it
	if err != nil {
		return err
	}
	pipe := master.Pipeline()
	_ = pipe.Process(ctx, added) // has no error of its own
	waited := p.wait(ctx, pipe)
	_, err = pipe.Exec(ctx) // the first error of the commands
	return cmp.Or(refusal(added, err), p.missing(waited))
}
