package webhook_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/inbox"
)

// A request without a valid signature is refused before the database is used. Here the generated constructor is written out.
func ExampleHandler() {
	pool := &pgxpool.Pool{} // of the database with the effects

	ib, err := inbox.New(inbox.Config{Group: "crm"})
	if err != nil {
		panic(err)
	}
	consumer, err := consume.New(ib, consume.Handle(stepTaken, &steps{}, (*steps).ConsumeStepTaken))
	if err != nil {
		panic(err)
	}
	handler, err := webhook.Handler(webhook.Config{
		DB: pool, Consumer: consumer, Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /events", handler)

	w := httptest.NewRecorder()
	q := httptest.NewRequest(http.MethodPost, "/events", strings.NewReader("{}"))
	q.Header.Set("webhook-id", "0190a5c2-7b1e-7c00-8000-0123456789ab")
	q.Header.Set("webhook-timestamp", "1614265330")
	mux.ServeHTTP(w, q)
	fmt.Print(w.Code, " ", w.Body)

	// Output:
	// 401 header webhook-signature is missing: the sender must sign
}
