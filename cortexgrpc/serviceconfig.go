package cortexgrpc

import (
	"encoding/json"
	"fmt"
)

// ServiceConfigRepeatable is a ClientConfig.Repeatable for those who have a service config: the methods to which it gives a
// retryPolicy (gRFC A6). Of several entries the nearest decides: that of the method, else of its service, else of all. What the policies
// say of attempts, delays and codes is the engine's to decide, and not read. The error is that of JSON, or names the entry.
func ServiceConfigRepeatable(serviceConfig string) (func(method string) bool, error) {
	var config struct {
		MethodConfig []struct {
			Name []struct {
				Service, Method string
			}
			RetryPolicy *json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(serviceConfig), &config); err != nil {
		return nil, fmt.Errorf("cortexgrpc: service config: %w", err)
	}
	retried := map[string]bool{} // by "service/method", "service/" and "/"
	for i, m := range config.MethodConfig {
		for _, n := range m.Name {
			if n.Service == "" && n.Method != "" {
				return nil, fmt.Errorf("cortexgrpc: service config: methodConfig[%d]: a method %q without its service", i, n.Method)
			}
			key := n.Service + "/" + n.Method
			if _, twice := retried[key]; twice {
				return nil, fmt.Errorf("cortexgrpc: service config: methodConfig[%d]: a second entry for %q", i, key)
			}
			retried[key] = m.RetryPolicy != nil
		}
	}
	return func(full string) bool {
		service, method := splitMethod(full)
		if service == "" {
			return false
		}
		for _, key := range [...]string{service + "/" + method, service + "/", "/"} {
			if r, ok := retried[key]; ok {
				return r
			}
		}
		return false
	}, nil
}
