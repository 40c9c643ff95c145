package gateway

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// credentialFields are the fields of requests, in canonical form, that are known to say who asks: what authenticates a client, and what
// proxies that have done so say of it. An answer to a request with one of them is likely for its sender alone.
var credentialFields = func() map[string]bool {
	m := make(map[string]bool)
	for _, key := range []string{
		"Authorization", "Cookie", "Proxy-Authorization", "DPoP",
		"X-Authorization", "X-Auth", "X-Auth-Token", "X-Auth-Key", "X-Access-Token", "X-Id-Token", "X-Session", "X-Session-Id", "X-Session-Token",
		"X-Csrf-Token", "X-Xsrf-Token", "X-Token", "X-Jwt", "X-Jwt-Assertion", "X-User-Token", "Token", "Access-Token", "Auth-Token",
		"X-Api-Key", "Api-Key", "Apikey", "X-Apikey", "X-Api-Token", "X-Api-Secret", "X-App-Key", "X-Client-Key", "X-Client-Secret",
		"X-Goog-Api-Key", "X-Goog-Iap-Jwt-Assertion", "X-Goog-Authenticated-User-Id", "X-Goog-Authenticated-User-Email",
		"X-Amz-Security-Token", "X-Amzn-Oidc-Data", "X-Amzn-Oidc-Identity", "X-Amzn-Oidc-Accesstoken",
		"X-Ms-Client-Principal", "X-Ms-Client-Principal-Id", "X-Functions-Key", "Ocp-Apim-Subscription-Key", "Cf-Access-Jwt-Assertion",
		"Cf-Access-Client-Id", "Private-Token", "Job-Token", "X-Vault-Token", "X-Gitlab-Token", "X-Shopify-Access-Token",
		"X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Preferred-Username", "X-Forwarded-Access-Token", "X-Forwarded-Groups",
		"X-Auth-Request-User", "X-Auth-Request-Email", "X-Auth-Request-Access-Token",
		"X-Remote-User", "Remote-User", "X-Authenticated-User", "X-Authenticated-Userid", "X-User", "X-User-Id", "X-Consumer-Id", "X-Consumer-Username",
		"X-Forwarded-Client-Cert", "X-Client-Cert", "X-Ssl-Client-Cert", "Client-Cert",
	} {
		m[textproto.CanonicalMIMEHeaderKey(key)] = true
	}
	return m
}()

// hasCredentials reports whether a request's answer is likely for its sender alone.
func (l *ladder) hasCredentials(h http.Header) bool {
	for key := range h {
		if strings.IndexByte(key, '_') >= 0 { // which is "-" to CGI and its like
			key = textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(key, "_", "-"))
		}
		if credentialFields[key] || slices.Contains(l.credentials, key) {
			return true
		}
	}
	return false
}
