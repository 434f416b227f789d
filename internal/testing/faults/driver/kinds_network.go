package driver

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// networkKinds are what happens to connections with PostgreSQL and NATS.
func networkKinds() []fault {
	of := func(kind string, share int, cause func(*proxy, *rand.Rand)) fault {
		return fault{kind, laneNetwork, share, "", func(_ context.Context, d *driver, r *rand.Rand) error {
			cause(d.proxies[[]string{shop.Worker, shop.Worker, shop.Writer, shop.Consumer}[r.IntN(4)]], r)
			return nil
		}}
	}
	return []fault{
		of("cut after k bytes of replies", 230, func(p *proxy, r *rand.Rand) { p.cutAfter(replies, r.IntN(4000), cutPatience) }),
		of("cut after k bytes of requests", 230, func(p *proxy, r *rand.Rand) { p.cutAfter(requests, r.IntN(4000), cutPatience) }),
		of("all connections reset", 0, func(p *proxy, _ *rand.Rand) { p.cutAll() }),
		of("black hole", 0, func(p *proxy, r *rand.Rand) { p.hole([2]bool{true, true}, upTo(r, 4*time.Second)) }),
		of("black hole for replies", 0, func(p *proxy, r *rand.Rand) { p.hole([2]bool{replies: true}, upTo(r, 4*time.Second)) }),
		of("black hole for requests", 0, func(p *proxy, r *rand.Rand) { p.hole([2]bool{requests: true}, upTo(r, 4*time.Second)) }),
		of("slow link", 0, func(p *proxy, r *rand.Rand) { p.crawl(20*time.Millisecond, upTo(r, 3*time.Second)) }),
		of("connections refused", 0, func(p *proxy, r *rand.Rand) { p.deny(upTo(r, 2*time.Second)) }),
		{"cut between NATS and its clients", laneNetwork, 40, "", func(_ context.Context, d *driver, r *rand.Rand) error {
			d.proxies["nats"].cutAfter(r.IntN(2), r.IntN(4000), cutPatience)
			return nil
		}},
		{"black hole before NATS", laneNetwork, 0, "", func(_ context.Context, d *driver, r *rand.Rand) error {
			d.proxies["nats"].hole([2]bool{true, true}, upTo(r, 4*time.Second))
			return nil
		}},
	}
}

// cutPatience is how long a cut waits for something to cut.
const cutPatience = time.Second
