package shop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Variable holds the orders of a process, and ClockVariable is set for a process whose wall clock jumps. The latter has the
// name that the overlay of tools/stepclock looks for.
const (
	Variable      = "OUTBOXGEN_TEST_FAULTS"
	ClockVariable = "OUTBOXGEN_TEST_LIMITS_CHILD"
)

// The roles of processes.
const (
	Writer   = "writer"
	Worker   = "worker"
	Consumer = "consumer"
	Clock    = "clock" // prints how far its wall clock is off, in seconds
)

// What a process is told on its standard input, one word per line. The end of the input ends it.
const (
	TellLate   = "late"   // a writer commits its next transaction late
	TellPoison = "poison" // a writer writes an event whose handler ends its process
	TellBurst  = "burst"  // a writer writes many events of a topic with limits
	TellEat    = "eat"    // a worker takes all memory that it can get
)

// Ready is what a process prints when it begins.
const Ready = "ready"

// exitBroken is the status of a process that cannot work, and exitPoison that of one whose handler has ended it.
const (
	exitBroken = 1
	exitPoison = 3
)

// The topics of the shop, all in one namespace.
const (
	Namespace   = "shop"
	OrderPlaced = "order_placed"
	ReminderDue = "reminder_due"
	StockMoved  = "stock_moved"
	ParcelSent  = "parcel_sent"
	InvoiceSent = "invoice_sent"
)

// Lease is that of the topics and listeners. Without faults it is CalmLease, so that none runs out on a busy machine.
const (
	Lease     = 3 * time.Second
	CalmLease = 30 * time.Second
)

const (
	// Secret signs the webhooks.
	Secret          = "whsec_ZmF1bHRzLWZhdWx0cy1mYXVsdHMtZmF1bHRzLTAx"
	KafkaTopic      = "shop.stock"
	NATSStream      = "SHOP"
	NATSSubjects    = "shop.>"
	shutdownTimeout = 5 * time.Second
)

// Orders say what a process does.
type Orders struct {
	Role, Name, History string
	Edition             int    // of the events, 1 or 2
	Seed                uint64 // of what it draws
	Database            string // URL
	Inbox               string // URL of the database of the consumers
	Kafka               []string
	NATS                string
	Webhook             string  // where webhooks go
	Listen              string  // where a consumer takes webhooks
	Items               int     // items that are written about
	Rate                float64 // events per second that a writer writes
	Calm                bool    // nothing goes wrong, in a handler either
}

// Main runs a process with the orders in text and returns its exit status.
func Main(text string) int {
	var o Orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "orders:", err)
		return exitBroken
	}
	if o.Role == Clock {
		fmt.Println(int64(time.Since(realNow()).Abs().Seconds()))
		return 0
	}
	signal.Ignore(os.Interrupt) // reaches the whole process group; the driver decides
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err := o.run(ctx, stop); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", o.Name, err)
		return exitBroken
	}
	return 0
}

func (o *Orders) run(ctx context.Context, stop context.CancelFunc) error {
	j, err := OpenJournal(o.History, o.Name)
	if err != nil {
		return err
	}
	told := make(chan string, 16)
	go func() {
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			told <- lines.Text()
		}
	}()
	switch o.Role {
	case Writer:
		return o.write(ctx, j, told)
	case Worker:
		err = o.work(ctx, j, told)
	case Consumer:
		err = o.consume(ctx, j)
	default:
		err = errors.New("no such role: " + o.Role)
	}
	if err == nil {
		j.left()
	}
	return err
}

// open returns a pool of a database, which need not answer now.
func open(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}

func ready() { _, _ = io.WriteString(os.Stdout, Ready+"\n") }
