package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// page is the dashboard of the demo.
type page struct {
	url    string
	view   *dashboard.Page
	server *http.Server
	ended  chan struct{} // closed when the server has ended
}

// openPage serves the dashboard on a free port of this machine.
func openPage(ctx context.Context, pool *pgxpool.Pool) (*page, error) {
	view, err := dashboard.New(dashboard.Config{Pool: pool, Title: "minichat demo", Mask: events.MaskPayload, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	port, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		view.Close()
		return nil, fmt.Errorf("open the dashboard: %w", err)
	}
	p := &page{
		url: "http://" + port.Addr().String() + view.Path(), view: view,
		server: &http.Server{Handler: view, ReadHeaderTimeout: 10 * time.Second}, ended: make(chan struct{}),
	}
	go func() {
		defer close(p.ended)
		_ = p.server.Serve(port) // ends with close
	}()
	return p, nil
}

func (p *page) close() error {
	err := p.server.Close()
	<-p.ended
	p.view.Close()
	if err != nil {
		return errors.Join(errors.New("close the dashboard"), err)
	}
	return nil
}
