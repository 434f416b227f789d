package people_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	events "github.com/outboxgen/outboxgen/generator/testdata/sensitive/want"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

// secret is in every sensitive field; born and pin are recognised by their digits.
const secret = "S3CRET"

var secrets = []string{secret, "1987", "4711"}

// timeless leaves out the time: its digits may be those of a secret.
var timeless = &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}}

func person() events.Joined {
	card := events.Card{Number: secret, Expires: payload.Date{Year: 2030, Month: time.March, Day: 1}}
	return events.Joined{
		PersonID: uuid.MustParse("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"),
		Email:    secret,
		Phone:    pointer(secret),
		Born:     &payload.Date{Year: 1987, Month: time.May, Day: 4},
		Pin:      4711,
		Tokens:   []string{secret},
		Nickname: pointer("nick"),
		Photo:    []byte("photo"),
		Home:     events.Address{City: "Berlin"},
		Wallet:   &events.Wallet{Cards: []events.Card{card}, Spare: &card, Named: map[string]events.Card{"main": card}},
	}
}

func requireMasked(t *testing.T, text string) {
	t.Helper()
	require.Contains(t, text, "[masked]")
	for _, value := range secrets {
		require.NotContains(t, text, value)
	}
}

func TestFormatMasks(t *testing.T) {
	t.Parallel()
	p := person()
	p.PersonID = uuid.Nil
	require.Equal(t, "{PersonID:00000000-0000-0000-0000-000000000000 Email:[masked] Phone:[masked] Born:[masked] Pin:[masked] Tokens:[masked] "+
		`Nickname:nick Photo:"photo" Home:{City:Berlin} Wallet:{Cards:[{Number:[masked] Expires:2030-03-01}] Spare:{Number:[masked] Expires:2030-03-01} `+
		"Named:map[main:{Number:[masked] Expires:2030-03-01}]}}", fmt.Sprint(p))
	holder := struct {
		Payload events.Joined
		Pointer *events.Wallet
		List    []events.Joined
	}{p, p.Wallet, []events.Joined{p}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		for _, v := range []any{p, &p, holder, *p.Wallet, p.Wallet.Cards, events.Paid{Wallet: *p.Wallet}} {
			requireMasked(t, fmt.Sprintf(verb, v))
		}
	}
	require.Contains(t, fmt.Sprint(events.Joined{}), "Nickname:<nil>")
}

func TestSlogMasks(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, timeless) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, timeless) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := person()
			var out bytes.Buffer
			log := slog.New(handler(&out))
			log.Info("payload", "v", p, "pointer", &p, "wallet", p.Wallet, "paid", events.Paid{Wallet: *p.Wallet})
			requireMasked(t, out.String())
		})
	}
}

// TestWhatMaskingDoesNotReach checks the limits that the documentation names. A newer Go may lift them.
func TestWhatMaskingDoesNotReach(t *testing.T) {
	t.Parallel()
	p := person()
	var asText, asJSON bytes.Buffer
	slog.New(slog.NewTextHandler(&asText, timeless)).Info("payloads", "list", []events.Joined{p}, "struct", struct{ P events.Joined }{p})
	requireMasked(t, asText.String())
	requireNoSecret(t, asText.String())
	slog.New(slog.NewJSONHandler(&asJSON, timeless)).Info("payloads", "list", []events.Joined{p})
	require.Contains(t, asJSON.String(), secret, "JSON is what is delivered")
	require.Contains(t, fmt.Sprintf("%v", struct{ p events.Joined }{p}), secret, "fmt calls no method of an unexported field")
	var delivery bytes.Buffer
	slog.New(slog.NewJSONHandler(&delivery, timeless)).Info("handled", "delivery", outbox.Delivery[events.Joined]{Payload: p})
	requireNoSecret(t, delivery.String())
	require.NotContains(t, delivery.String(), "masked", "nothing of the payload")
}

// TestJSONKeepsValues shows that masking does not reach the payload itself.
func TestJSONKeepsValues(t *testing.T) {
	t.Parallel()
	want := person()
	data, err := json.Marshal(want)
	require.NoError(t, err)
	var got events.Joined
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, want, got)
}

// TestErrorsHoldNoValue breaks the rules of sensitive fields.
func TestErrorsHoldNoValue(t *testing.T) {
	t.Parallel()
	p := person()
	p.Email, p.Pin = secret+"\xff", 471
	err := p.Validate()
	require.EqualError(t, err, "validate people/joined: email is not valid UTF-8; pin is below 1000; "+
		"wallet.cards[0].number does not match ^[0-9]{12,19}$; wallet.spare.number does not match ^[0-9]{12,19}$; wallet.named[*].number does not match ^[0-9]{12,19}$")
	requireNoSecret(t, err.Error())
}

func requireNoSecret(t *testing.T, text string) {
	t.Helper()
	for _, value := range secrets {
		require.NotContains(t, text, value)
	}
}

// pointer returns a pointer to a copy of v.
func pointer[T any](v T) *T { return &v }
