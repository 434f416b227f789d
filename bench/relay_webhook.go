package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

func relayWebhook(n int) workload {
	return relayBeside("relay-webhook", "a webhook", fmt.Sprintf("The receiver is an HTTP server in this process that reads the body and answers 204. "+
		"Requests are signed, %d at a time.", webhookRequests), n, startWebhook)
}

// webhookRequests is how many requests run at a time, as by default.
const webhookRequests = 16

var webhookSecret = bytes.Repeat([]byte("secret"), 5)

func startWebhook(context.Context) (*relayBroker, error) {
	var got atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got.Add(1)
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = s.Serve(l) }()
	url := "http://" + l.Addr().String() + "/events"
	return &relayBroker{
		destination: "shop",
		ours: func() (publish.Publisher, func(), error) {
			p, err := webhook.New(webhook.Config{
				Endpoints:       map[string]webhook.Endpoint{"shop": {URL: url, Secrets: []string{base64.StdEncoding.EncodeToString(webhookSecret)}}},
				AllowedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Logger: quiet,
			})
			if err != nil {
				return nil, nil, err
			}
			return p, p.Close, nil
		},
		hand: func(ctx context.Context, db *database) error {
			transport := http.DefaultTransport.(*http.Transport).Clone()
			transport.MaxIdleConnsPerHost = webhookRequests
			defer transport.CloseIdleConnections()
			return relayLoop(ctx, db, func(e *handEvent) handEvent { return *e }, func(ctx context.Context, part []handEvent) error {
				some, ctx := errgroup.WithContext(ctx)
				some.SetLimit(webhookRequests)
				for i := range part {
					some.Go(func() error { return post(ctx, transport, url, &part[i]) })
				}
				return some.Wait()
			})
		},
		arrived: func(context.Context) (int, error) { return int(got.Load()), nil },
		stop:    s.Close,
	}, nil
}

// post posts an event, signed as Standard Webhooks says.
func post(ctx context.Context, transport http.RoundTripper, url string, e *handEvent) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(e.payload))
	if err != nil {
		return err
	}
	id, at := e.id.String(), strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, webhookSecret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, e.payload)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", at)
	r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	handHeaders(e, func(name, value string) { r.Header.Set("Ce-"+name, value) })
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the receiver answers %s", answer.Status)
	}
	return nil
}
