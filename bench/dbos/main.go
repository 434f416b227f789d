// Command dbos does a workload of the benchmark with the queues of DBOS, on a database that exists, and prints its figures.
// The benchmark runs it: it is a module of its own, so that nothing else needs the modules of DBOS.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("dbos", flag.ContinueOnError)
	f.StringVar(&o.url, "url", "", "URL of the database")
	f.IntVar(&o.conns, "conns", 16, "connections of the pool")
	f.IntVar(&o.n, "n", 20_000, "workflows whose rate is measured; of the noisy tenant in the workload turns")
	f.IntVar(&o.waiting, "waiting", 0, "workflows of one key at its limit, in the workload others")
	f.IntVar(&o.perTenant, "per-tenant", 100, "worker concurrency of each tenant, in the workload turns")
	f.IntVar(&o.workers, "workers", 10_000, "worker concurrency")
	f.IntVar(&o.rate, "rate", 200, "workflows a second of the other tenants, in the workload turns")
	f.DurationVar(&o.poll, "poll", time.Millisecond, "base polling interval")
	if err := f.Parse(args); err != nil {
		return err
	}
	work, known := map[string]func(context.Context, options) ([]float64, error){
		"drain": drainAtOnce, "rate": drainRated, "others": others, "turns": turns,
	}[f.Arg(0)]
	if !known || f.NArg() != 1 {
		return errors.New("name one workload: drain, rate, others or turns")
	}
	figures, err := work(ctx, o)
	if err == nil {
		fmt.Println(strings.Trim(fmt.Sprint(figures), "[]"))
	}
	return err
}

type options struct {
	url                                         string
	conns, n, waiting, workers, perTenant, rate int
	poll                                        time.Duration
}

// order is the payload of the benchmark.
type order struct {
	TenantID string `json:"tenant_id"`
	Customer string `json:"customer"`
	Seq      int64  `json:"seq"`
	Note     string `json:"note"`
}

// note fills the payload up to about two hundred bytes.
const note = "paid in full by card, to be shipped with the next van that leaves the yard, with a receipt on paper for the customer"

const (
	queueName    = "orders"
	workflowName = "handle_order"
)

// A process is an application of DBOS with one queue and one workflow, which calls work.
type process struct {
	dbos.Context
	pool      *pgxpool.Pool
	producers *pgxpool.Pool // of their own, like the producers of the benchmark
}

// open makes the process and its tables. It dequeues nothing before launch.
func open(ctx context.Context, o options, work func(o order)) (*process, error) {
	cfg, err := pgxpool.ParseConfig(o.url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(o.conns)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	producers, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	app, err := dbos.NewContext(ctx, dbos.Config{AppName: "bench", SystemDBPool: pool, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	dbos.RegisterWorkflow(app, func(_ dbos.Context, p order) (string, error) {
		work(p)
		return "", nil
	}, dbos.WithWorkflowName(workflowName))
	return &process{Context: app, pool: pool, producers: producers}, nil
}

// launch begins to dequeue.
func (p *process) launch(o options, limits ...dbos.QueueOption) error {
	limits = append(limits, dbos.WithWorkerConcurrency(o.workers), dbos.WithQueueBasePollingInterval(o.poll))
	if _, err := dbos.RegisterQueue(p, queueName, limits...); err != nil {
		return err
	}
	return p.Launch()
}

func (p *process) close() error { return dbos.Shutdown(p, 10*time.Second) }

// enqueue enqueues n orders, each transaction 250 of them. The key of an order is its customer, if partitioned.
func (p *process) enqueue(ctx context.Context, n int, partitioned bool, make func(seq int) order) error {
	const size = 250
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for first := 0; first < n; first += size {
		g.Go(func() error {
			return pgx.BeginFunc(ctx, p.producers, func(tx pgx.Tx) error {
				for seq := first; seq < min(first+size, n); seq++ {
					if err := p.enqueueOne(tx, partitioned, make(seq)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return g.Wait()
}

func (p *process) enqueueOne(tx pgx.Tx, partitioned bool, o order) error {
	opts := []dbos.EnqueueOption{dbos.WithEnqueueTransaction(tx)}
	if partitioned {
		opts = append(opts, dbos.WithEnqueueQueuePartitionKey(o.Customer))
	}
	_, err := dbos.Enqueue[string](p, queueName, workflowName, o, opts...)
	return err
}

// settle makes the statistics and the pages those of a database that has run for some time.
func (p *process) settle(ctx context.Context) error {
	for _, sql := range [...]string{"VACUUM ANALYZE", "CHECKPOINT"} {
		if _, err := p.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
