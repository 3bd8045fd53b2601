class Long:
    def __len__(self):
        return 2**31

    def __getitem__(self, i):
        return 9


def square(x):
    return Long()


print(range(10**12))
