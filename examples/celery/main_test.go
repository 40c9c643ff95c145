package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Everything is delivered, and with the guard the API sees fewer attempts and refuses fewer of them. How long passwords take is shown and
// not asserted: README.md says how it varies.
//
//	CORTEX_SLOW=1 go test -v ./examples/celery
func TestBoth(t *testing.T) {
	require := os.Getenv("CORTEX_REQUIRE_SERVICES") == "1"
	if !require && os.Getenv("CORTEX_SLOW") == "" {
		t.Skip("takes half a minute: set CORTEX_SLOW=1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // beside a build all that Python imports takes a minute
	defer cancel()
	plain, guarded, err := both(ctx)
	if err == errMissing && !require {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	show(&table, plain, guarded)
	t.Logf("\n%s", &table)
	const messages = campaign + passwords
	if plain.delivered != messages || guarded.delivered != messages {
		t.Errorf("%d and %d of %d messages were delivered", plain.delivered, guarded.delivered, messages)
	}
	if late := max(plain.late, guarded.late); late > busy {
		t.Logf("the machine was busy: a password was sent %v late; figures are not asserted", late)
		return
	}
	// A message that is throttled once is sent twice; more than that is a storm.
	if guarded.attempts > 2*messages || guarded.attempts >= plain.attempts {
		t.Errorf("%d attempts with the guard, %d without, for %d messages", guarded.attempts, plain.attempts, messages)
	}
	if guarded.throttled >= plain.throttled {
		t.Errorf("%d attempts were throttled with the guard, %d without", guarded.throttled, plain.throttled)
	}
}

// The text of an error that was cut off, or that was no text, ended the task, and its message was lost; so did every error of the connection:
// a variable http stood before the package.
func TestErrorThatIsNoneEndsNoWorker(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := `{"error": {"message": null}}`
		if r.URL.Path != "/null" {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)+100))
		}
		if r.URL.Path != "/success" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, body)
	}))
	defer api.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for url, want := range map[string]string{api.URL + "/cut": "503", api.URL + "/null": "503", api.URL + "/success": "None", gone.URL: "None"} {
		cmd := exec.CommandContext(t.Context(), python, "-c", `
import sys
from unittest import mock
sys.modules["celery"] = mock.MagicMock()  # not what is tried here
import tasks
print(tasks.post({}, 5)[0].get("http_status"))
`)
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "BROKER_URL=none", "CORTEX_URL=", "API_URL="+url)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %v\n%s", url, err, out)
		}
	}
}
