package driver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
)

// kafka is a cluster in this process that keeps its records when it is down.
type kafka struct {
	opts []kfake.Opt

	mu      sync.Mutex
	cluster *kfake.Cluster // nil while it is down
	addrs   []string
	conns   map[net.Conn]bool
}

func startKafka(dir string) (*kafka, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	k := &kafka{conns: make(map[net.Conn]bool)}
	k.opts = []kfake.Opt{
		kfake.NumBrokers(1), kfake.SeedTopics(4, shop.KafkaTopic), kfake.Ports(port), kfake.DataDir(filepath.Join(dir, "kafka")), kfake.ListenFn(k.listen),
	}
	return k, k.start()
}

func (k *kafka) start() error {
	for _, a := range k.addrs { // where it was before
		if err := freeport.Reclaim(a); err != nil {
			return fmt.Errorf("start Kafka: %w", err)
		}
	}
	c, err := kfake.NewCluster(k.opts...)
	if err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cluster, k.addrs = c, c.ListenAddrs()
	return nil
}

func (k *kafka) stop() {
	k.mu.Lock()
	c := k.cluster
	k.cluster = nil
	k.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// fault has requests fail, if the cluster is up.
func (k *kafka) fault(f kfake.Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cluster != nil {
		k.cluster.Fault(f)
	}
}

func (k *kafka) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return cutListener{l, k}, err
}

// cut closes all connections.
func (k *kafka) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		_ = c.Close()
	}
	clear(k.conns)
}

// cutListener has its connections in a list.
type cutListener struct {
	net.Listener
	k *kafka
}

func (l cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.k.mu.Lock()
		l.k.conns[c] = true
		l.k.mu.Unlock()
	}
	return c, err
}

// nats is a server with JetStream in this process.
type nats struct {
	opts   server.Options
	server *server.Server
}

func startNATS(ctx context.Context, dir string) (*nats, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	n := &nats{opts: server.Options{
		ServerName: "faults", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: filepath.Join(dir, "nats"), NoSigs: true, NoLog: true,
	}}
	if err := n.start(); err != nil {
		return nil, err
	}
	conn, err := natsgo.Connect(n.server.ClientURL())
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	// Messages are recognised for a short time only, so that repeats do reach the consumer.
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: shop.NATSStream, Subjects: []string{shop.NATSSubjects}, Duplicates: time.Second}); err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	return n, nil
}

func (n *nats) addr() string { return net.JoinHostPort(n.opts.Host, strconv.Itoa(n.opts.Port)) }

func (n *nats) start() error {
	if err := freeport.Reclaim(n.addr()); err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	opts := n.opts
	s, err := server.NewServer(&opts)
	if err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return fmt.Errorf("start NATS: it does not answer")
	}
	n.server = s
	return nil
}

func (n *nats) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// The ways of the gate to treat a webhook.
const (
	passes  = ""
	answers = "answers" // with the status of the gate
	hangs   = "hangs"
	loses   = "loses" // the answer
)

// gate is in front of the consumers' webhooks and misbehaves as web servers do.
type gate struct {
	server *http.Server
	url    string
	next   atomic.Uint64
	to     []*httputil.ReverseProxy

	mu     sync.Mutex
	way    string
	status int
}

func startGate(consumers []string) (*gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start gate: %w", err)
	}
	g := &gate{url: "http://" + l.Addr().String() + "/"}
	for _, c := range consumers {
		p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c})
		p.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
		g.to = append(g.to, p)
	}
	g.server = &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = g.server.Serve(l) }()
	return g, nil
}

func (g *gate) set(way string, status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.way, g.status = way, status
}

// ServeHTTP passes a request on to one of the consumers, or misbehaves.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	way, status := g.way, g.status
	g.mu.Unlock()
	to := g.to[g.next.Add(1)%uint64(len(g.to))]
	switch way {
	case answers:
		w.WriteHeader(status)
	case hangs:
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
		panic(http.ErrAbortHandler)
	case loses:
		to.ServeHTTP(&unheard{make(http.Header)}, r)
		panic(http.ErrAbortHandler)
	default:
		to.ServeHTTP(w, r)
	}
}

// unheard is an answer that nobody gets.
type unheard struct{ header http.Header }

func (u *unheard) Header() http.Header         { return u.header }
func (u *unheard) WriteHeader(int)             {}
func (u *unheard) Write(b []byte) (int, error) { return len(b), nil }

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	return nil
}
