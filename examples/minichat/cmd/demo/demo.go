package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/examples/minichat/database"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
)

const (
	producers = 4
	// drainTimeout is how long the last events may take. The slowest ones wait for a lease to expire, then for their last
	// attempt.
	drainTimeout = 60 * time.Second
	drainPoll    = 100 * time.Millisecond
)

// demo is one run: a server, a folder for the records, and the processes that use them.
type demo struct {
	dir       string // of the records
	url       string
	brokers   string
	pool      *pgxpool.Pool
	operator  *admin.Admin
	analytics *analytics
	progress  *progress
	traffic   *traffic
	children  []*child
	killed    kill
}

// kill is the state that was found after a worker was killed.
type kill struct {
	done   bool
	inHand int // events that it held
}

// options say how the demo runs.
type options struct {
	turns int
	stay  bool // keep the dashboard, a worker and the servers until ctx ends
}

// runDemo runs the whole demo, calls show with the account, and leaves nothing behind.
func runDemo(ctx context.Context, opts options, stderr io.Writer, show func(Account) error) (err error) {
	began := time.Now()
	p := newProgress(stderr)
	defer p.stop()

	p.say("start PostgreSQL with durable settings")
	server, err := pgserver.Start(pgserver.Options{Durable: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	dir, err := os.MkdirTemp("", "minichat-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pool, err := pgxpool.New(ctx, server.URL())
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()

	p.say("start Kafka in this process")
	cluster, err := startKafka()
	if err != nil {
		return err
	}
	defer cluster.Close()

	d := &demo{dir: dir, url: server.URL(), brokers: cluster.ListenAddrs()[0], pool: pool, progress: p}
	defer d.killAll()
	p.say("migrate")
	if err := database.Migrate(ctx, pool); err != nil {
		return err
	}
	if d.operator, err = admin.New(pool, database.Schema); err != nil {
		return err
	}
	if d.analytics, err = openAnalytics(ctx, pool, server.URLOf("analytics"), cluster); err != nil {
		return err
	}
	defer d.analytics.pool.Close()
	site, err := openPage(ctx, pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	p.say("dashboard: %s", site.url)
	consuming, stopConsumer := context.WithCancel(ctx)
	consumed := make(chan error, 1)
	go func() { consumed <- d.analytics.run(consuming) }()
	err = d.run(ctx, opts.turns)
	stopConsumer()
	if err := errors.Join(err, <-consumed); err != nil {
		return err
	}
	p.stop()
	h, err := d.history(ctx)
	if err != nil {
		return err
	}
	account := settle(h)
	account.Seconds = time.Since(began).Seconds()
	if err := show(account); err != nil {
		return err
	}
	if opts.stay {
		return d.stay(ctx, site.url)
	}
	return nil
}

// stay keeps a worker and the dashboard until ctx ends, so that somebody can look, and replay dead letters.
func (d *demo) stay(ctx context.Context, url string) error {
	running, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	d.children = nil
	if err := d.start(running, "c", abort); err != nil {
		return cause(running, err)
	}
	d.progress.say("the dashboard and a worker stay until Ctrl-C: %s", url)
	<-running.Done()
	if ctx.Err() == nil {
		return context.Cause(running)
	}
	return nil
}

func (d *demo) run(ctx context.Context, turns int) error {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	for _, name := range []string{"a", "b"} {
		if err := d.start(ctx, name, abort); err != nil {
			return err
		}
	}

	var err error
	if d.traffic, err = newTraffic(ctx, d.pool, d.dir, turns); err != nil {
		return err
	}
	d.progress.say("%d producers run %d chat turns", producers, turns)
	d.progress.follow(ctx, d.counts)
	if err := d.traffic.run(ctx, func() error { return d.killInBatch(ctx, abort) }); err != nil {
		return cause(ctx, err)
	}
	d.progress.say("producers are done; wait for the last events")
	if err := d.drain(ctx); err != nil {
		return cause(ctx, err)
	}
	for _, c := range d.children {
		if err := c.stop(); err != nil {
			return err
		}
	}
	return nil
}

// killInBatch blocks the handlers of the first worker before they return, waits until the worker signals that some are
// blocked, and kills the process. The work of these handlers is done, but not acked. The consumer of the other service
// dies as well.
func (d *demo) killInBatch(ctx context.Context, abort context.CancelCauseFunc) error {
	d.analytics.die()
	c := d.children[0]
	if err := c.hold(); err != nil {
		return err
	}
	if err := c.await(ctx, saysHolding); err != nil {
		return err
	}
	if err := c.kill(); err != nil {
		return err
	}
	err := d.pool.QueryRow(ctx, `
		SELECT count(*)
		FROM outbox.queue
		WHERE locked_until IS NOT NULL AND locked_by = $1`, c.worker).Scan(&d.killed.inHand)
	if err != nil {
		return fmt.Errorf("count events of the killed worker: %w", err)
	}
	d.killed.done = true
	d.progress.say("worker %s killed in the middle of a batch with %d events in hand; start it again", c.name, d.killed.inHand)
	d.children = d.children[1:]
	return d.start(ctx, c.name+"2", abort)
}

// start adds a worker process. If the process ends by itself, abort is called.
func (d *demo) start(ctx context.Context, name string, abort context.CancelCauseFunc) error {
	c, err := startChild(name, d.dir, d.url, d.brokers, abort)
	if err != nil {
		return err
	}
	d.children = append(d.children, c)
	return c.await(ctx, saysReady)
}

// drain waits until every event of the queue is delivered or dead, the listeners have caught up, and the other service
// has what they sent. A timeout is not an error: the account says what is left.
func (d *demo) drain(ctx context.Context) error {
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		if done, err := d.isDone(ctx); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return nil
		case <-tick.C:
		}
	}
}

func (d *demo) isDone(ctx context.Context) (bool, error) {
	var queued, logged, applied int
	err := d.pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM outbox.queue), (SELECT count(*) FROM outbox.log)").Scan(&queued, &logged)
	if err != nil {
		return false, fmt.Errorf("count events that are left: %w", err)
	}
	if err := d.analytics.pool.QueryRow(ctx, "SELECT count(*) FROM turns").Scan(&applied); err != nil {
		return false, fmt.Errorf("count turns of the other service: %w", err)
	}
	listeners, err := d.operator.Listeners(ctx)
	if err != nil {
		return false, err
	}
	for _, l := range listeners {
		if l.Lag > 0 {
			return false, nil
		}
	}
	return queued == 0 && applied >= logged, nil
}

func (d *demo) killAll() {
	for _, c := range d.children {
		_ = c.kill() // fails only if the process has ended
	}
}

// cause returns why ctx was canceled, or err if it was not.
func cause(ctx context.Context, err error) error {
	if reason := context.Cause(ctx); reason != nil {
		return reason
	}
	return err
}
