package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

const maxBody = 4 << 10

// readJSON reads the body of a request that says that it is JSON, which no form of a web page can; else it returns the status to
// answer with.
func readJSON(w http.ResponseWriter, r *http.Request) (body []byte, status int, err error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, errors.New("send it with Content-Type: application/json")
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", maxBody)
	case err != nil:
		return nil, http.StatusBadRequest, errors.New("the body broke off")
	}
	return body, 0, nil
}

// parseWord reads {"key":"value"} strictly: that key, once, and one of those values. With no key it reads {} or nothing.
func parseWord(body []byte, key string, values []string) (value string, err error) {
	want := "{}"
	if key != "" {
		want = fmt.Sprintf("{%q:%q}", key, values[0])
	} else if len(bytes.TrimSpace(body)) == 0 {
		return "", nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", fmt.Errorf("the body is no JSON object: want one such as %s", want)
	}
	found := false
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return "", fmt.Errorf("the body is no JSON: want it such as %s", want)
		}
		switch name, _ := t.(string); {
		case name != key || key == "":
			return "", fmt.Errorf("%s: unknown key: want %s", show(name), want)
		case found:
			return "", fmt.Errorf("%s: given twice: want it once", key)
		}
		found = true
		var v any
		if err := d.Decode(&v); err != nil {
			return "", fmt.Errorf("the body is no JSON: want it such as %s", want)
		}
		var ok bool
		if value, ok = v.(string); !ok || !slices.Contains(values, value) {
			got := show(value)
			if !ok {
				got = "no string"
			}
			return "", fmt.Errorf("%s: %s: want one of %s", key, got, strings.Join(values, ", "))
		}
	}
	if _, err := d.Token(); err != nil { // the brace
		return "", fmt.Errorf("the body is no JSON: want it such as %s", want)
	}
	if _, err := d.Token(); err != io.EOF {
		return "", fmt.Errorf("there is something behind the JSON object: want %s alone", want)
	}
	if !found && key != "" {
		return "", fmt.Errorf("%s: missing: want %s", key, want)
	}
	return value, nil
}

// show makes what a client wrote fit for a message.
func show(s string) string {
	const most = 40
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
