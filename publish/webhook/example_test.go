package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

// A dispatcher or listener gets the publisher under the name "webhook" and calls Publish. A network that is not public, such
// as the one of this server, must be allowed.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("Ce-Type"), r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Signature") != "")
	}))
	defer server.Close()
	publisher, err := webhook.New(webhook.Config{
		Endpoints: map[string]webhook.Endpoint{
			"crm": {URL: server.URL, Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
		},
		AllowedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close() // after Run has returned

	errs := publisher.Publish(context.Background(), []publish.Outgoing{{
		Event: outbox.Event{
			ID: uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"), Namespace: "users", Topic: "user_renamed", Version: 1,
		},
		Payload:     []byte(`{"name": "Zoë"}`),
		Destination: "crm",
		Key:         "user/17",
	}})
	fmt.Println(errs[0])
	// Output:
	// users.user_renamed 0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11 true
	// <nil>
}

// New takes an encoder and one or more endpoints. An invalid configuration is an error.
func ExampleNew() {
	publisher, err := webhook.New(webhook.Config{
		Endpoints: map[string]webhook.Endpoint{
			"crm":     {URL: "https://crm.example.com/events", Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
			"metrics": {URL: "https://metrics.example.com", Unsigned: true, Headers: map[string]string{"Authorization": "Bearer secret"}},
		},
		Encoder: publish.CloudEvents("/accounts", publish.Structured),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	publisher.Close()

	_, err = webhook.New(webhook.Config{Endpoints: map[string]webhook.Endpoint{"crm": {URL: "https://crm.example.com/events"}}})
	fmt.Println(err)
	// Output: create webhook publisher: endpoint "crm": field Secrets is empty: add a secret, or set Unsigned to post without a signature
}

// During a rotation an endpoint has the new and the old secret, and each request is signed with both. An Endpoint can be
// printed and logged without showing a secret.
func ExampleEndpoint() {
	e := webhook.Endpoint{
		URL:     "https://crm.example.com/events?token=secret",
		Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"},
	}
	fmt.Println(e)
	// Output: {URL:https://crm.example.com/[masked] Secrets:2 Headers:0}
}
