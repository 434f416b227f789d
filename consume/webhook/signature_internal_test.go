package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/webhookkey"
)

// The published example of Standard Webhooks, which the official libraries test themselves with.
const (
	officialSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	officialID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	officialTime      = 1614265330
	officialBody      = `{"test": 2432232314}`
	officialSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	wrongSignature    = "Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="
)

// TestStandardWebhooks has the cases of the official libraries, and some more.
func TestStandardWebhooks(t *testing.T) {
	t.Parallel()
	at := time.Unix(officialTime, 0)
	const window = 5 * time.Minute
	set := func(name, value string) func(http.Header) {
		return func(h http.Header) { h.Set(name, value) }
	}
	for name, test := range map[string]struct {
		change func(http.Header)
		body   string
		now    time.Time
		want   string // a part of the error; "" for none
	}{
		"valid":                 {},
		"at the end":            {now: at.Add(window)},
		"at the begin":          {now: at.Add(-window)},
		"old":                   {now: at.Add(window + time.Second), want: "webhook-timestamp is 5m1s old by the receiver's clock, at most 5m0s allowed"},
		"new":                   {now: at.Add(-window - time.Second), want: "webhook-timestamp is 5m1s in the future"},
		"no id":                 {change: func(h http.Header) { h.Del("webhook-id") }, want: "header webhook-id is missing"},
		"no time":               {change: func(h http.Header) { h.Del("webhook-timestamp") }, want: "header webhook-timestamp is missing"},
		"no signature":          {change: func(h http.Header) { h.Del("webhook-signature") }, want: "header webhook-signature is missing"},
		"empty id":              {change: set("webhook-id", ""), want: "header webhook-id is missing"},
		"two ids":               {change: func(h http.Header) { h.Add("webhook-id", "other") }, want: "header webhook-id is there 2 times"},
		"two times":             {change: func(h http.Header) { h.Add("webhook-timestamp", "1") }, want: "header webhook-timestamp is there 2 times"},
		"other id":              {change: set("webhook-id", "other"), want: "no signature"},
		"other time":            {change: set("webhook-timestamp", strconv.Itoa(officialTime+1)), want: "no signature"},
		"same time, other text": {change: set("webhook-timestamp", "0"+strconv.Itoa(officialTime)), want: "no signature"},
		"other body":            {body: officialBody + " ", want: "no signature"},
		"wrong signature":       {change: set("webhook-signature", "v1,"+wrongSignature), want: "no signature"},
		"partial signature":     {change: set("webhook-signature", "v1,"), want: "no signature"},
		"half a signature":      {change: set("webhook-signature", officialSignature[:20]), want: "no signature"},
		"longer signature":      {change: set("webhook-signature", officialSignature+"AAAA"), want: "no signature"},
		"without version":       {change: set("webhook-signature", officialSignature[3:]), want: "no signature"},
		"other version":         {change: set("webhook-signature", "v1a"+officialSignature[2:]), want: "no signature"},
		"not base64":            {change: set("webhook-signature", "v1,%%%"), want: "no signature"},
		"one of several": {change: set("webhook-signature",
			"v1,"+wrongSignature+" v2,"+wrongSignature+"  "+officialSignature+" v1,"+wrongSignature)},
		"in another header line": {change: func(h http.Header) {
			h.Set("webhook-signature", "v1,"+wrongSignature)
			h.Add("webhook-signature", officialSignature)
		}},
	} {
		for _, secret := range []string{officialSecret, strings.TrimPrefix(officialSecret, "whsec_")} {
			key, err := webhookkey.Decode(secret)
			require.NoError(t, err)
			header := http.Header{}
			header.Set("webhook-id", officialID)
			header.Set("webhook-timestamp", strconv.Itoa(officialTime))
			header.Set("webhook-signature", officialSignature)
			if test.change != nil {
				test.change(header)
			}
			now, body := test.now, test.body
			if now.IsZero() {
				now = at
			}
			if body == "" {
				body = officialBody
			}
			err = verifier{keys: [][]byte{key}, tolerance: window}.verify(header, []byte(body), now)
			if test.want == "" {
				require.NoError(t, err, name)
			} else {
				require.ErrorContains(t, err, test.want, name)
			}
		}
	}
}

// TestTimestamps: the signature is not enough for a time that is no number, or far away.
func TestTimestamps(t *testing.T) {
	t.Parallel()
	v := verifier{tolerance: time.Minute}
	now := time.Unix(officialTime, 0)
	for text, want := range map[string]string{
		"1614265330": "", "01614265330": "", "": "is not a number", "-1": "is not a number", "1.6e9": "is not a number", " 1614265330": "is not a number",
		"99999999999999999999": "is not a number", "4611686018427387903": "in the future", "0": "old", "1614265269": "is 1m1s old", "1614265270": "",
		"1614265391": "is 1m1s in the future",
	} {
		err := v.recent(text, now)
		if want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b", oneLine("a\tb\nstack"))
	require.Equal(t, "a?b", oneLine("a\xffb"))
	long := oneLine(strings.Repeat("é", maxReason))
	require.Equal(t, strings.Repeat("é", maxReason/2)+"...", long)
}
