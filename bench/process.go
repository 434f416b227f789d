package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/queue"
)

// workerVariable holds the orders of a worker process, which runs this program.
const workerVariable = "OUTBOXGEN_BENCH_WORKER"

type workerOrders struct {
	URL   string
	Took  time.Duration // of each handler
	River bool          // it runs River, with settings as they come
}

// workerMain is a worker process: it says that it is ready, begins when it is told a word, and stops when its input ends.
func workerMain(ctx context.Context, text string) error {
	var o workerOrders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	db := database{url: o.URL}
	pool, err := db.open(ctx, 16)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	run, err := o.runner(pool)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	return run(ctx)
}

func (o workerOrders) runner(pool *pgxpool.Pool) (run func(context.Context) error, err error) {
	if o.River {
		client, err := plainRiver(pool)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			if err := client.Start(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			return client.Stop(context.WithoutCancel(ctx))
		}, nil
	}
	work := workOf(o.Took)
	d, err := events.NewBenchDispatcher(pool, &events.BenchHandler{Work: func(ctx context.Context, _ int64) { work(ctx) }},
		queue.Config{Concurrency: 10, PruneInterval: -1, Logger: quiet})
	if err != nil {
		return nil, err
	}
	return d.Run, nil
}

// A process is a worker process.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// startProcess starts a worker process, and returns when it is ready.
func startProcess(ctx context.Context, o workerOrders) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), workerVariable+"="+string(text)), os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("start worker process: %w", err), p.stop())
	}
	return p, nil
}

func (p *process) begin() error {
	_, err := io.WriteString(p.stdin, "begin\n")
	return err
}

// stop ends a process in order.
func (p *process) stop() error { return errors.Join(p.stdin.Close(), p.cmd.Wait()) }

// spent returns the processor time that a process has used until now. It is known only on Linux.
func (p *process) spent() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	const tick = 10 * time.Millisecond // USER_HZ
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	var ticks int64
	for _, i := range [...]int{11, 12} { // utime and stime of proc(5), behind the name
		n, err := strconv.ParseInt(string(fields[i]), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// drainProcesses measures a drain by worker processes.
func drainProcesses(processes, n int, took time.Duration) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillPaid(ctx, db, n); err != nil {
			return 0, err
		}
		var all []*process
		stop := func() (err error) {
			for _, p := range all {
				err = errors.Join(err, p.stop())
			}
			return err
		}
		for range processes {
			p, err := startProcess(ctx, workerOrders{URL: db.url, Took: took})
			if err != nil {
				return 0, errors.Join(err, stop())
			}
			all = append(all, p)
		}
		figure, err := drainBy(ctx, db, n, all)
		if err := errors.Join(err, stop()); err != nil {
			return 0, err
		}
		return figure, db.count(ctx, n, "delivered", delivered)
	}
}

func drainBy(ctx context.Context, db *database, n int, all []*process) (float64, error) {
	started := time.Now()
	for _, p := range all {
		if err := p.begin(); err != nil {
			return 0, err
		}
	}
	for left := true; left; pause(ctx, 5*time.Millisecond) {
		if err := db.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox.queue)").Scan(&left); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(started).Seconds(), nil
}

// idleTime measures what a worker process uses while nothing happens.
func idleTime() workload {
	const seconds = 20
	of := func(o workerOrders) measured {
		return func(ctx context.Context, db *database) (float64, error) {
			if o.River {
				if err := migrateRiver(ctx, db.pool); err != nil {
					return 0, err
				}
			}
			o := o
			o.URL = db.url
			p, err := startProcess(ctx, o)
			if err != nil {
				return 0, err
			}
			figure, err := p.idle(ctx, seconds*time.Second)
			return figure, errors.Join(err, p.stop())
		}
	}
	return workload{
		name: "idle", title: "processor time of an idle process", unit: "ms per second", lessIsBetter: true,
		about:      fmt.Sprintf("Without PostgreSQL, over %d seconds in which no event is enqueued. Settings are as they come.", seconds),
		contenders: []contender{{"dispatcher", of(workerOrders{})}, {"River", of(workerOrders{River: true})}},
		targets:    []target{{of: "dispatcher", to: "River", atMost: 1}},
	}
}

// idle returns the processor time that p uses in a while, in ms per second. It begins when p has settled down.
func (p *process) idle(ctx context.Context, while time.Duration) (float64, error) {
	if err := p.begin(); err != nil {
		return 0, err
	}
	pause(ctx, 3*time.Second)
	before, err := p.spent()
	if err != nil {
		return 0, err
	}
	pause(ctx, while)
	after, err := p.spent()
	if err != nil {
		return 0, err
	}
	return milliseconds(after-before) / while.Seconds(), ctx.Err()
}
