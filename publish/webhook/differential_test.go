package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	cloudevent "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	receiving "github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/inbox"
)

// nowhere is a database that is away.
type nowhere struct{}

func (nowhere) Begin(context.Context) (pgx.Tx, error) { return nil, errors.New("away") }

// wellFormed is what the specification says of a header of signatures. The library ignores what follows a second comma, and
// ours ignores line ends and spaces in base64.
var wellFormed = regexp.MustCompile(`^([a-z0-9]*,[A-Za-z0-9+/]*={0,2})( [a-z0-9]*,[A-Za-z0-9+/]*={0,2})*$`)

// FuzzVerifyAgainstTheLibrary: consume/webhook and the public library of Standard Webhooks accept the same signatures.
func FuzzVerifyAgainstTheLibrary(f *testing.F) {
	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(f, err)
	at := time.Now()
	f.Add("msg_1", int64(0), "%", []byte("{}"))
	f.Add("msg.1", int64(299), "v1a,x %", []byte(nil))
	f.Add("", int64(-301), "v1,", []byte{0xff})
	f.Add("a b", int64(0), "v2,x v1,% v1,%", []byte("."))
	ib, err := inbox.New(inbox.Config{Group: "crm"})
	require.NoError(f, err)
	c, err := consume.New(ib, consume.Handle(stepReceived, &applier{}, (*applier).ConsumeStepTaken))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, id string, off int64, signatures string, body []byte) {
		off %= 1000
		if abs := max(off, -off); 290 < abs && abs < 310 {
			return // the clock goes on between the two
		}
		signed, err := hook.Sign(id, at, body)
		require.NoError(t, err)
		signatures = strings.ReplaceAll(signatures, "%", signed)
		timestamp := strconv.FormatInt(at.Unix()+off, 10)
		if off != 0 && strings.Contains(signatures, "v1,") {
			signature, err := hook.Sign(id, time.Unix(at.Unix()+off, 0), body)
			require.NoError(t, err)
			signatures += " " + signature
		}
		if !wellFormed.MatchString(signatures) {
			return
		}
		header := http.Header{}
		header.Set(standardwebhooks.HeaderWebhookID, id)
		header.Set(standardwebhooks.HeaderWebhookTimestamp, timestamp)
		header.Set(standardwebhooks.HeaderWebhookSignature, signatures)
		theirs := hook.Verify(body, header)

		h, err := receiving.Handler(receiving.Config{
			DB: nowhere{}, Consumer: c, Secrets: []string{secret}, Logger: quiet(), Timeout: time.Minute,
		})
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.Header = header
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, theirs == nil, w.Code != http.StatusUnauthorized, "library: %v; ours: %d %s", theirs, w.Code, w.Body)
		require.NotEqual(t, http.StatusNoContent, w.Code)
	})
}

// ours are the attributes that only our events have, and time, whose years the SDK does not bound.
var ours = regexp.MustCompile(`^(id|type|dataversion|tenantid|entitytype|entityid|entityversion|time|content-type|data|data_base64)$`)

// FuzzParseAgainstTheSDK: of a CloudEvent in structured mode that the SDK accepts, consume.Parse reads the same, or says which
// attribute is not one of our events.
func FuzzParseAgainstTheSDK(f *testing.F) {
	id := uuid.NewString()
	for _, body := range []string{
		`{"specversion":"1.0","id":"` + id + `","source":"/a","type":"users.user_created","data":{"a":1}}`,
		`{"specversion":"1.0","id":"` + id + `","source":"/a","type":"users.user_created","datacontenttype":"application/json","data_base64":"eyJhIjoxfQ=="}`,
		`{"specversion":"1.0","id":"` + id + `","source":"/a","type":"a.b","dataversion":2,"urgent":true,"time":"2026-05-01T12:00:00.5+02:00","data":[1,"x"]}`,
		`{"specversion":"1.0","id":"` + id + `","source":"/a","type":"a.b","subject":null,"data":null,"data":"again"}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var theirs cloudevent.Event
		if err := json.Unmarshal(body, &theirs); err != nil || theirs.Validate() != nil || theirs.SpecVersion() != "1.0" {
			return
		}
		r, err := consume.Parse(consume.Message{ContentType: "application/cloudevents+json", Body: body})
		if err != nil {
			var fault *consume.Error
			require.ErrorAs(t, err, &fault)
			require.Regexp(t, ours, fault.Field, "the SDK accepts it: %v", err)
			return
		}
		require.Equal(t, theirs.Type(), r.Type)
		require.Equal(t, theirs.Source(), r.Source)
		parsed, err := uuid.Parse(theirs.ID())
		require.NoError(t, err)
		require.Equal(t, parsed, r.ID)
		require.True(t, theirs.Time().Equal(r.Time), "%s, %s", theirs.Time(), r.Time)
		if json.Valid(r.Payload) && json.Valid(theirs.Data()) {
			require.JSONEq(t, string(theirs.Data()), string(r.Payload))
		}
	})
}
