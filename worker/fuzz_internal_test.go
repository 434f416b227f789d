package worker

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// FuzzDrainParameters: a request can only lower the bounds of a drain, and what cannot be read has a status of the client.
func FuzzDrainParameters(f *testing.F) {
	f.Add("events=5", "", []byte(nil))
	f.Add("", "application/json", []byte(`{"events":5,"seconds":1.5}`))
	f.Add("", "application/x-www-form-urlencoded", []byte("seconds=1e-400"))
	f.Add("seconds=NaN&events=-1", "text/plain; charset=", []byte(`{"events":1e999}`))
	f.Add("events=1&events=2", "application/json", bytes.Repeat([]byte("["), 4096))
	most := outbox.DrainLimit{Events: 100, Time: time.Minute}
	h := &handler{limit: most}
	f.Fuzz(func(t *testing.T, query, contentType string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.URL = &url.URL{Path: "/", RawQuery: query}
		r.Header.Set("Content-Type", contentType)
		limit, err := h.limitOf(httptest.NewRecorder(), r)
		if err != nil {
			var wrong fault
			require.ErrorAs(t, err, &wrong)
			require.True(t, 400 <= wrong.status && wrong.status < 500)
			return
		}
		require.True(t, 1 <= limit.Events && limit.Events <= most.Events && 1 <= limit.Time && limit.Time <= most.Time, "%+v", limit)
	})
}
