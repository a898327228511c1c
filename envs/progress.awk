# Turns pip's output into a counter, such as `[ 57/300] torch==2.13.0`. Warnings are left out, errors are not.
# Variables: total, the number of packages; terminal, 1 if a line may be written over. A file gets ten lines.
function show(text) {
    printf(terminal ? "\r\033[K%s" : "%s\n", text)
    fflush()
    open = terminal
}
function close_line() {
    if (open) printf "\n"
    open = 0
}
function package(text) {
    sub(/ [(]from .*/, "", text)
    sub(/ in .*/, "", text)
    sub(/.*\//, "", text)
    return text
}
/^(Collecting|Processing|Obtaining|Requirement already satisfied:) / {
    sub(/^(Collecting|Processing|Obtaining|Requirement already satisfied:) /, "")
    seen++
    tenth = total > 10 ? int(total / 10) : 1
    if (terminal || seen == total || seen % tenth == 0) show(sprintf("[%*d/%d] %s", length(total), seen, total, package($0)))
}
/^Installing collected packages/ { show(sprintf("[%d/%d] unpacking", seen, total)) }
/^ *(ERROR|error):/ { close_line(); print }
END { close_line() }
