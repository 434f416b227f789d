package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
)

// customers is how many customers have orders that no limit holds up.
const customers = 1000

func customer(seq int) string { return "customer" + strconv.Itoa(seq%customers) }

// drainAtOnce measures a drain under limits of concurrency that do not bind.
func drainAtOnce(ctx context.Context, o options) ([]float64, error) {
	return drain(ctx, o, false, dbos.WithGlobalConcurrency(10_000))
}

// drainRated measures a drain under a rate that does not bind.
func drainRated(ctx context.Context, o options) ([]float64, error) {
	return drain(ctx, o, false, dbos.WithRateLimiter(&dbos.RateLimiter{Limit: 1_000_000, Period: time.Second}))
}

// others measures a drain of a thousand keys, each with one workflow at a time, next to one key whose first does not end.
func others(ctx context.Context, o options) ([]float64, error) {
	return drain(ctx, o, true, dbos.WithPartitionConcurrency(1))
}

// drain measures how many of n workflows end a second, from the launch until the last outcome is recorded.
func drain(ctx context.Context, o options, partitioned bool, limit dbos.QueueOption) (figures []float64, err error) {
	const stuck = "stuck"
	var left, held atomic.Int64
	left.Store(int64(o.n))
	done, release, waits := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	p, err := open(ctx, o, func(w order) {
		if w.Customer == stuck {
			held.Add(1)
			waits <- struct{}{}
			<-release
			return
		}
		if left.Add(-1) == 0 {
			close(done)
		}
	})
	if err != nil {
		return nil, err
	}
	end := sync.OnceFunc(func() { close(release) })
	defer func() {
		end()
		err = errors.Join(err, p.close())
	}()
	if o.waiting > 0 {
		if err := p.enqueue(ctx, o.waiting, partitioned, func(seq int) order { return order{Customer: stuck, Seq: int64(seq), Note: note} }); err != nil {
			return nil, err
		}
	}
	if err := p.enqueue(ctx, o.n, partitioned, func(seq int) order {
		return order{Customer: customer(seq), Seq: int64(seq), Note: note}
	}); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	launched := time.Now()
	if err := p.launch(o, limit); err != nil {
		return nil, err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if o.waiting > 0 {
		<-waits // it was dequeued too
	}
	if err := p.recorded(ctx, min(o.waiting, 1)); err != nil {
		return nil, err
	}
	rate := float64(o.n) / time.Since(launched).Seconds()
	if n := held.Load(); n > 1 {
		return nil, fmt.Errorf("%d workflows of a key with one at a time", n)
	}
	return []float64{rate}, p.succeeded(ctx, o.n)
}

// recorded waits until no workflows run, as the database has it, but some that do not end. A workflow begins before its
// outcome is recorded: all could begin at once.
func (p *process) recorded(ctx context.Context, running int) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		pending, err := p.count(ctx, "PENDING")
		if err != nil || pending == running {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d workflows are pending, want %d", pending, running)
		}
	}
}

// succeeded checks that n workflows have their outcome.
func (p *process) succeeded(ctx context.Context, n int) error {
	got, err := p.count(ctx, "SUCCESS")
	if err == nil && got != n {
		err = fmt.Errorf("%d workflows succeeded, want %d", got, n)
	}
	return err
}

func (p *process) count(ctx context.Context, status string) (n int, err error) {
	err = p.producers.QueryRow(ctx, "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = $1 AND status = $2",
		queueName, status).Scan(&n)
	return n, err
}

// turns measures the times from commit to start of single workflows of 999 tenants, in random order at a rate, while
// the backlog of another tenant is drained: the median, p99 and p99.9 in ms.
func turns(ctx context.Context, o options) (figures []float64, err error) {
	const most = 100_000
	const noisy = "noisy"
	var left atomic.Int64
	left.Store(int64(o.n))
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	var mu sync.Mutex
	committed, started := make([]time.Time, most), make([]time.Time, most)
	next := make(chan struct{}, most)
	p, err := open(ctx, o, func(w order) {
		if w.Customer == noisy {
			left.Add(-1)
			begin()
			return
		}
		now := time.Now()
		mu.Lock()
		started[w.Seq] = now
		mu.Unlock()
		next <- struct{}{}
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.enqueue(ctx, o.n, true, func(seq int) order { return order{Customer: noisy, Seq: int64(seq), Note: note} }); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	if err := p.launch(o, dbos.WithPartitionWorkerConcurrency(o.perTenant)); err != nil {
		return nil, err
	}
	select {
	case <-begun:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	sent, first := 0, time.Now()
	for ; left.Load() > 0 && sent < most && ctx.Err() == nil; sent++ {
		time.Sleep(time.Until(first.Add(time.Duration(sent) * time.Second / time.Duration(o.rate))))
		err := pgx.BeginFunc(ctx, p.producers, func(tx pgx.Tx) error {
			return p.enqueueOne(tx, true, order{Customer: customer(rand.IntN(customers - 1)), Seq: int64(sent), Note: note})
		})
		if err != nil {
			return nil, err
		}
		now := time.Now()
		mu.Lock()
		committed[sent] = now
		mu.Unlock()
	}
	for range sent {
		select {
		case <-next:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if sent == 0 {
		return nil, errors.New("the backlog was drained before the first workflow of another tenant")
	}
	waits := make([]float64, sent)
	for i := range sent {
		waits[i] = max(0, float64(started[i].Sub(committed[i]))/float64(time.Millisecond))
	}
	slices.Sort(waits)
	for _, q := range [...]float64{0.5, 0.99, 0.999} {
		figures = append(figures, waits[int(q*float64(sent-1))])
	}
	return figures, errors.Join(p.recorded(ctx, 0), p.succeeded(ctx, o.n+sent))
}
